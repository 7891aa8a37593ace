"""Emulated time: the only place where the emulator reads a clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


class EmulatedClock:
    """Seconds of emulated time since the fleet was made.

    ``time_scale`` is real seconds per emulated second: 1.0 is real time, 0.05 is twenty times quicker. Readings are
    as fine as the system's clock. (The loop's own time will not do: uvloop's is cached and moves in milliseconds,
    which are 20 emulated ones at a scale of 0.05.) Timers are good to about two real milliseconds; who needs the
    exact moment asks the models of compute and batching, which work it out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, time_scale: float = 1.0) -> None:
        if not time_scale > 0:
            raise ValueError(f"time scale must be above 0, not {time_scale}")
        self.time_scale = time_scale
        self._loop = loop
        self._origin = time.monotonic()

    def now(self) -> float:
        """Emulated seconds since the start."""
        return (time.monotonic() - self._origin) / self.time_scale

    def call_at(self, when: float, callback: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        """Run ``callback`` at the emulated time ``when``; the handle can be cancelled."""
        return self.call_later(when - self.now(), callback, *args)

    def call_later(self, delay: float, callback: Callable[..., None], *args: object) -> asyncio.TimerHandle:
        """Run ``callback`` after ``delay`` emulated seconds."""
        # Whole milliseconds, rounded up: uvloop rounds to the nearest, and a timer that fires early would be set again
        # and again until its time has come.
        milliseconds = math.ceil(max(0.0, delay * self.time_scale * 1000))
        return self._loop.call_later(milliseconds / 1000, callback, *args)
