"""Scenes run on both event loops that the product runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _runner(loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> Run:
    def run(scene: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(asyncio.wait_for(scene, 30))

    return run


@pytest.fixture
def run() -> Run:
    """Runs a scene on asyncio's own loop."""
    return _runner(None)


@pytest.fixture(params=["asyncio", "uvloop"])
def run_on_both(request: pytest.FixtureRequest) -> Run:
    """Runs a scene on asyncio's own loop and on uvloop: for what depends on transports."""
    return _runner(uvloop.new_event_loop if request.param == "uvloop" else None)
