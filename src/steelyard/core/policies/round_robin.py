"""round-robin: one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from steelyard.core.node import Node
from steelyard.core.policies.derived import Derived
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work


class Cursor:
    """The place in a list where the next turn begins."""

    __slots__ = ("position",)

    def __init__(self, candidates: Sequence[Node], rng: Random) -> None:
        # Not 0: when the fleet changes often, or clients make up model names, every new list would begin with the
        # same node.
        self.position = rng.randrange(len(candidates))


@register
class RoundRobin:
    """Every node in turn; a full one is passed over.

    Each set of candidates has its own cursor, so that the requests of two models that alternate do not take each
    other's turns.
    """

    name: ClassVar[str] = "round-robin"
    sampled: ClassVar[bool] = False
    slow_start: ClassVar[bool] = True

    def __init__(self) -> None:
        self._cursors = Derived(Cursor)

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        cursor = self._cursors.of(candidates, rng)
        position, count = cursor.position, len(candidates)
        for _ in range(count):
            node = candidates[position]
            position += 1
            if position == count:
                position = 0
            if node.free_slots > 0 and memory <= node.free_memory:
                cursor.position = position
                return node
        return None

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return None
