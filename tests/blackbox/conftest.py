"""Black-box tests are coroutines: each runs on a loop of its own, and ends with the invariants of `World.close`."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
import uvloop

from tests.blackbox.world import World

SECONDS_A_TEST = 50


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The nodes, gateways and clients of the test; the invariants are asserted when it has ended."""
    return World(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function on uvloop; on asyncio's own loop when its parameter `loop` says so."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    world = given.get("world")
    factory = None if given.get("loop") == "asyncio" else uvloop.new_event_loop

    async def scene() -> None:
        if isinstance(world, World):
            world.begin()
        passed = False
        try:
            async with asyncio.timeout(SECONDS_A_TEST):
                await test(**given)
            passed = True
        finally:
            if isinstance(world, World):
                await world.close(check=passed)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scene())
    return True
