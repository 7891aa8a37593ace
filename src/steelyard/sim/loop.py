"""The event loop of the scenes: the gateway's own, and one that ends cleanly when it is told to."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or asyncio's own where uvloop does not exist."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def run_until_told(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; Ctrl-C or SIGTERM cancels it, so that every `finally` runs, and KeyboardInterrupt is raised."""

    async def listening() -> Any:
        loop = asyncio.get_running_loop()
        work = loop.create_task(main)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    return run_loop(listening())
