"""consistent-hash: the same session to the same node, as long as that node has no more than its share."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from random import Random
from typing import ClassVar, Final

from steelyard.core.node import Node
from steelyard.core.policies.derived import Derived
from steelyard.core.policies.draw import two
from steelyard.core.policies.registry import register
from steelyard.core.work import Footprint, Work

LOAD_FACTOR: Final = 1.25
"""No node gets more than so many times the mean of requests in flight. HAProxy advises 1.25 to 2, KubeAI and Envoy's
examples take 1.25 or 1.2: less moves too many sessions, more leaves too much imbalance."""
DIGESTS: Final = 16
POINTS_A_DIGEST: Final = 8
"""128 points a node leave shares of the ring that differ by about 9 % (1 / sqrt(128)); what is left the
bound cuts off. A digest of 64 bytes makes eight of them."""
WALK: Final = 64
"""Points passed over before all candidates are looked at. At most n / 1.25 nodes can be at their bound, so that the
walk passes 64 points in one of a million requests unless nodes are full for other reasons."""
RINGS: Final = 16
"""Rings remembered. One of 1,000 nodes takes 10 MB."""

Ring = list[tuple[int, str, Node]]
"""(point, name, node), sorted: the name makes the order of two equal points the same everywhere."""


def key_point(key: str) -> int:
    """Where a session stands on the ring; the same on every gateway."""
    # Clients choose keys: JSON lets half a surrogate pair through, which plain UTF-8 would refuse.
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def points(node: Node) -> Ring:
    """The points of a node, from its name alone: it takes its place again when it comes back."""
    name = node.name
    found: Ring = []
    for number in range(DIGESTS):
        digest = blake2b(f"{number}\0{name}".encode("utf-8", "surrogatepass")).digest()
        for start in range(0, 8 * POINTS_A_DIGEST, 8):
            found.append((int.from_bytes(digest[start : start + 8], "big"), name, node))
    return found


@register
class ConsistentHash:
    """A hash ring with bounded loads (Mirrokni, Thorup, Zadimoghaddam).

    A session belongs to the first node clockwise of its point that has fewer than ceil(1.25 x (in flight + 1) / nodes)
    requests in flight, and that fits. When a node comes or goes, only the sessions of its part of the ring move. Where
    every node below the bound is full, the least loaded that fits takes the work: a bound must not leave a node idle.

    A request without a session has nothing to stick to: it goes to the less loaded of two random nodes. Static weights
    do not count, and a node that joins gets its part at once: a slow start would send its sessions to and fro.
    """

    name: ClassVar[str] = "consistent-hash"
    sampled: ClassVar[bool] = False
    slow_start: ClassVar[bool] = False

    def __init__(self) -> None:
        self._rings = Derived(self._ring, kept=RINGS)
        self._newest: Ring = []
        self._members: set[Node] = set()
        """Of the newest ring."""

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        key = work.session
        if key is None:
            drawn = two(candidates, memory, rng)
            if drawn is None:
                return None
            first, second = drawn
            return second if second.in_flight < first.in_flight else first
        total = sum([node.in_flight for node in candidates])  # a list is quicker than a generator: 20 us at 1,000
        bound = ceil(LOAD_FACTOR * (total + 1) / len(candidates))
        ring = self._rings.of(candidates, rng)
        size = len(ring)
        place = bisect(ring, (key_point(key),))
        for _ in range(WALK):
            if place >= size:
                place = 0
            node = ring[place][2]
            if node.in_flight < bound and node.free_slots > 0 and memory <= node.free_memory:
                return node
            place += 1
        free = [node for node in candidates if node.free_slots > 0 and memory <= node.free_memory]
        if not free:
            return None
        least = min([node.in_flight for node in free])
        return rng.choice([node for node in free if node.in_flight == least])

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        return None

    def _ring(self, candidates: Sequence[Node], rng: Random) -> Ring:
        # From the newest ring, if most of it stays: hashing and sorting 1,000 nodes from nothing takes 0.2 s.
        members = set(candidates)
        joined, left = members - self._members, self._members - members
        if len(joined) + len(left) < len(members):
            ring = [point for point in self._newest if point[2] not in left] if left else self._newest.copy()
        else:
            ring, joined = [], members
        for node in joined:
            ring += points(node)
        ring.sort()
        self._newest, self._members = ring, members
        return ring
