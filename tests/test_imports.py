"""Any module of Steelyard can be the first that a program imports, compiled or not.

Compiled modules are checked, too, because a class that is built before a type of one of its fields ends the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import steelyard

PACKAGE = Path(steelyard.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)


def test_there_are_modules() -> None:
    assert {"steelyard.core.balancer", "steelyard.proxy.exchange"} < set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_imported_first(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
