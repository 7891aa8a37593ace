"""What all tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("steelyard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steelyard")


@pytest.fixture(scope="session")
def need() -> Callable[[str], str]:
    """``need("nginx")`` is the path of that program.

    Where it is missing the test is skipped, saying so; in CI (the variable CI is set) it fails, since there a skipped
    test is a test that was lost without anyone noticing.
    """

    def need(program: str) -> str:
        # Servers live in /usr/sbin, which is not on the path of every user.
        path = shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
        if path is None:
            reason = f"{program} is not installed; .ci/run installs what the tests need"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        return path

    return need
