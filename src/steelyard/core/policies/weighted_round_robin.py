"""weighted-round-robin: in turn, a node of weight 3 three times as often as one of weight 1, evenly spread."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from math import gcd
from random import Random
from typing import ClassVar, Final

from steelyard.core.node import Node
from steelyard.core.policies.derived import Derived
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work

STEPS: Final = 16
"""Turns that are passed over because their node is full, before all candidates are looked at."""
START: Final = 1000
"""A new schedule begins at a random one of its first turns, at most this one: going there costs 0.3 us a turn."""


class Group:
    """The nodes of one weight. All gain credit alike, so the one that was served longest ago leads."""

    __slots__ = ("gained", "members", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.gained = 0
        """Credit that every member has gained so far."""
        self.members: deque[tuple[int, int, Node]] = deque()
        """(credit spent as a negative number, place in the list of candidates, node)."""


class Schedule:
    """nginx's smooth weighted round robin, as an endless sequence of nodes.

    There, every turn gives each node its weight as credit, takes the node with the most credit (the first of several)
    and charges it the sum of all weights: O(nodes) a turn. Nodes of one weight keep their order, so only the leaders of
    the weights need comparing: the same sequence at O(different weights) a turn.
    """

    __slots__ = ("groups", "total")

    def __init__(self, candidates: Sequence[Node], rng: Random) -> None:
        groups: dict[int, Group] = {}
        for place, node in enumerate(candidates):
            group = groups.get(node.weight)
            if group is None:
                group = groups[node.weight] = Group(node.weight)
            group.members.append((0, place, node))
        self.groups = list(groups.values())
        self.total = sum(node.weight for node in candidates)
        # Not always at the first turn, which is a heavy node's: when the fleet changes often, those would get all.
        turns = self.total // gcd(*groups)
        for _ in range(rng.randrange(min(turns, START))):
            self.turn()

    def turn(self) -> Node:
        """The node whose turn it is."""
        most, first = 0, -1
        leading = self.groups[0]
        for group in self.groups:
            group.gained += group.weight
            spent, place, _ = group.members[0]
            credit = group.gained + spent
            if first < 0 or credit > most or (credit == most and place < first):
                most, first, leading = credit, place, group
        members = leading.members
        spent, place, node = members.popleft()
        members.append((spent - self.total, place, node))
        return node


def nodes_and_weights(candidates: Sequence[Node]) -> Hashable:
    return (*candidates, *[node.weight for node in candidates])


@register
class WeightedRoundRobin:
    """The smooth schedule by `Node.weight`; the turns of a full node go to those that follow.

    A full node neither saves up its turns nor shifts the others' shares: what is left of the schedule without it is in
    proportion too. Where the next turns are all full nodes', the node is drawn by weight among those that fit.
    """

    name: ClassVar[str] = "weighted-round-robin"
    sampled: ClassVar[bool] = False
    slow_start: ClassVar[bool] = True

    def __init__(self) -> None:
        self._schedules = Derived(Schedule, nodes_and_weights)

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        schedule = self._schedules.of(candidates, rng)
        for _ in range(STEPS):
            node = schedule.turn()
            if node.free_slots > 0 and memory <= node.free_memory:
                return node
        free = [node for node in candidates if node.free_slots > 0 and memory <= node.free_memory]
        if not free:
            return None
        return rng.choices(free, [node.weight for node in free])[0]

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return None
