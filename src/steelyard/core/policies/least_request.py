"""least-request: the node with the fewest requests in flight for its weight."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


@register
class LeastRequest:
    """Compares (in flight + 1) / weight, which counts this request too; ties at random.

    With the + 1, idle nodes of different weight do not tie: the heavier one is first.
    """

    name: ClassVar[str] = "least-request"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        least = inf
        found: list[Node] = []
        for node in candidates:
            if node.free_slots > 0 and memory <= node.free_memory:
                load = (node.in_flight + 1) / node.weight
                if load < least:
                    least = load
                    found = [node]
                elif load == least:
                    found.append(node)
        if not found:
            return None
        return found[int(rng.random() * len(found))]

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return (node.in_flight + 1) / node.weight
