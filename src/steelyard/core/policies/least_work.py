"""least-work, the default: the node that is predicted to be done first."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


@register
class LeastWork:
    """Compares (predicted seconds of all that is reserved there + this work's own) / the node's speed; ties at random.

    Own reservations count at once, so that requests between two readings of telemetry do not herd. `Node.speed` says
    how fast a node is; a static weight would say it a second time, and does not count.
    """

    name: ClassVar[str] = "least-work"
    sampled: ClassVar[bool] = True
    slow_start: ClassVar[bool] = True

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        own = footprint.seconds
        least = inf
        found: list[Node] = []
        for node in candidates:
            if node.free_slots > 0 and memory <= node.free_memory:
                seconds = (node.reserved_seconds + own) / node.speed
                if seconds < least:
                    least = seconds
                    found = [node]
                elif seconds == least:
                    found.append(node)
        if not found:
            return None
        return found[int(rng.random() * len(found))]

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return (node.reserved_seconds + footprint.seconds) / node.speed
