"""Traces: which requests come when. The same seed gives the same trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from steelyard.sim.http_client import Request


class Arrival(NamedTuple):
    """One request of a trace."""

    at: float
    """Seconds after the beginning of the trace, in the time of the emulated nodes."""
    kind: str
    """Which sort of request it is, in tables."""
    request: Request
    work: float = 0.0
    """Seconds that it takes on an idle node of speed 1."""
    memory: int = 0
    """Bytes that it holds meanwhile."""


def poisson(rng: Random, rate: float) -> Iterator[float]:
    """Moments of a Poisson process of `rate` a second, for ever: independent users who do not wait for one another."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def offered_load(trace: Iterable[Arrival], capacity: float) -> float:
    """Work that arrives, as a share of what the fleet can do: work-seconds / (`capacity` x duration).

    `capacity` is in seconds of work a second: the sum of the nodes' speeds. Above 1 no balancer can serve all in time.
    The duration is from the beginning to the last arrival.
    """
    work = last = 0.0
    for arrival in trace:
        work += arrival.work
        last = max(last, arrival.at)
    if not last > 0:
        raise ValueError("a trace without duration has no load")
    return work / (capacity * last)
