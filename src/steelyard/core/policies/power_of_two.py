"""power-of-two: the less loaded of two random nodes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.draw import two
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


@register
class PowerOfTwo:
    """Two different nodes at random, the one with the smaller (in flight + 1) / weight of them.

    Mitzenmacher's power of two choices. Which of the two was drawn first is random too, and it wins ties.
    """

    name: ClassVar[str] = "power-of-two"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        drawn = two(candidates, memory, rng)
        if drawn is None:
            return None
        first, second = drawn
        if (second.in_flight + 1) * first.weight < (first.in_flight + 1) * second.weight:
            return second
        return first

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return (node.in_flight + 1) / node.weight
