"""least-response-time: the node whose last answer came soonest. The naive one, kept for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


@register
class LeastResponseTime:
    """Compares the last sample alone, 0 for a node that has none; ties at random.

    It knows nothing of what is in flight, so that between two answers all requests go to one node; and one light
    request makes a slow node look fast. The scene of the long tails shows what that costs.
    """

    name: ClassVar[str] = "least-response-time"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        least = inf
        found: list[Node] = []
        for node in candidates:
            if node.free_slots > 0 and memory <= node.free_memory:
                seconds = node.latency.last or 0.0
                if seconds < least:
                    least = seconds
                    found = [node]
                elif seconds == least:
                    found.append(node)
        if not found:
            return None
        return found[int(rng.random() * len(found))]

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return node.latency.last or 0.0
