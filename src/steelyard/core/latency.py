"""What was measured of a node's answers. Sliding windows join here; these two are read by classic policies."""

from __future__ import annotations

from math import exp
from typing import Final

DECAY_SECONDS: Final = 10.0
"""Time constant of the peak EWMA; the value of Finagle's and Linkerd's balancers."""


class Latency:
    """Time to answer of one node, in seconds: the last sample, and a peak-sensitive moving average.

    The average is Finagle's Peak EWMA: it jumps to a peak at once, and decays with time, also while idle.
    """

    __slots__ = ("_average", "_stamp", "last")

    def __init__(self) -> None:
        self.last: float | None = None
        """The last sample, None before the first."""
        self._average = 0.0
        self._stamp = 0.0

    def observe(self, seconds: float, now: float) -> None:
        """Take in one successful answer. Failures are not fed: a fast failure must never look fast."""
        self.last = seconds
        elapsed = now - self._stamp
        if elapsed > 0.0:
            self._stamp = now
            keep = exp(-elapsed / DECAY_SECONDS)
            decayed = self._average * keep
            self._average = seconds if seconds > decayed else decayed + seconds * (1.0 - keep)
        elif seconds > self._average:
            self._average = seconds

    def peak_ewma(self, now: float) -> float:
        """The average at `now`, in seconds; 0.0 before the first sample."""
        elapsed = now - self._stamp
        if elapsed <= 0.0:
            return self._average
        return self._average * exp(-elapsed / DECAY_SECONDS)
