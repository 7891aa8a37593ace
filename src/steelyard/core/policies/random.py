"""random: any node that fits."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.draw import one
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


@register
class RandomChoice:
    """Every node that fits with the same probability, whatever its weight: the baseline of every comparison."""

    name: ClassVar[str] = "random"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        return one(candidates, memory, rng)

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return None
