"""What a policy is, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar, Final, Protocol, TypeVar

from steelyard.core.node import Node
from steelyard.core.work import Footprint, Work


class Policy(Protocol):
    """Picks one of the candidates."""

    name: ClassVar[str]
    sampled: ClassVar[bool]
    """True when it compares all it is given, so that a random sample of many candidates serves as well as all of them.
    False when it keeps an order: it wants the whole list, always the same one, and reads little of it."""
    slow_start: ClassVar[bool]
    """Whether a node that joins gets only a share of its part at first; False where that would move sessions twice."""

    def pick(
        self, candidates: Sequence[Node], work: Work, footprint: Footprint, memory: int, now: float, rng: Random
    ) -> Node | None:
        """The node, or None when none of the candidates has a free slot and `memory` bytes free.

        `candidates` is not empty. `memory` is less than any node's free memory where memory is ignored. Nothing is
        changed but the policy's own cursor.
        """

    def score(self, node: Node, work: Work, footprint: Footprint, now: float) -> float | None:
        """What the policy compares, the least is picked; None for a policy that does not compare. For people."""


_POLICIES: Final[dict[str, Callable[[], Policy]]] = {}

P = TypeVar("P", bound=Policy)


def register(policy: type[P]) -> type[P]:
    """Class decorator: make a policy known by its name. Raises ValueError when the name is taken."""
    if policy.name in _POLICIES:
        raise ValueError(f"a policy named {policy.name} exists already")
    _POLICIES[policy.name] = policy
    return policy


def create(name: str) -> Policy:
    """A new instance of the policy called `name`. Raises KeyError."""
    return _POLICIES[name]()


def names() -> list[str]:
    """The names of all policies, sorted."""
    return sorted(_POLICIES)
