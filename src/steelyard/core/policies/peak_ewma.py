"""peak-ewma: of two random nodes, the one that answers sooner and has less to do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from steelyard.core.node import Node
from steelyard.core.policies.draw import two
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work

PENALTY: Final = float(1 << 47)
"""Load of a node that has work but has not answered yet; more than any measured load. Finagle's value."""


def load(node: Node, now: float) -> float:
    """Peak EWMA of the time to answer x (in flight + 1), in seconds.

    A node without samples is free of charge while it is idle and out of question while it is not: it gets exactly one
    request at a time until its first answer. So it is tried, and not flooded.
    """
    seconds = node.latency.peak_ewma(now)
    if seconds > 0.0:
        return seconds * (node.in_flight + 1)
    return PENALTY + node.in_flight if node.in_flight else 0.0


@register
class PeakEwma:
    """Finagle's and Linkerd's balancer: power of two choices over `load`."""

    name: ClassVar[str] = "peak-ewma"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        drawn = two(candidates, memory, rng)
        if drawn is None:
            return None
        first, second = drawn
        return second if load(second, now) < load(first, now) else first

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return load(node, now)
