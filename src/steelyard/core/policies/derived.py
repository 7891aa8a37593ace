"""What an ordered policy keeps about a list of candidates: a cursor, a schedule, a ring."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from steelyard.core.node import Node

T = TypeVar("T")

KEPT: Final = 128
"""Lists remembered, the oldest is forgotten first: nodes that come and go must not add up. A fleet has as many lists as
there are different sets of nodes behind its models; a list that was forgotten only starts anew."""


class Derived(Generic[T]):
    """Remembers one T for every list of candidates.

    A list is known again by its identity (the Fleet hands out the same object until something changes), else by what
    is in it: a caller that builds an equal list for every request gets the same T, at the price of reading the list.
    """

    __slots__ = ("_by_content", "_by_identity", "_content", "_derive", "_kept")

    def __init__(
        self,
        derive: Callable[[Sequence[Node], Random], T],
        content: Callable[[Sequence[Node]], Hashable] = tuple,
        kept: int = KEPT,
    ) -> None:
        self._derive = derive
        self._content = content
        """What two lists must have in common to be the same."""
        self._kept = kept
        self._by_identity: dict[int, tuple[Sequence[Node], int, T]] = {}
        self._by_content: dict[Hashable, T] = {}

    def __len__(self) -> int:
        return len(self._by_content)

    def of(self, candidates: Sequence[Node], rng: Random) -> T:
        """The T of these candidates; derived when they are new."""
        # The entry holds the list itself, so that its id cannot be given to another object meanwhile.
        entry = self._by_identity.get(id(candidates))
        if entry is not None and entry[1] == len(candidates):
            return entry[2]
        return self._by_reading(candidates, rng)

    def _by_reading(self, candidates: Sequence[Node], rng: Random) -> T:
        content = self._content(candidates)
        try:
            derived = self._by_content[content]
        except KeyError:
            derived = self._derive(candidates, rng)
            if len(self._by_content) >= self._kept:
                del self._by_content[next(iter(self._by_content))]
            self._by_content[content] = derived
        if len(self._by_identity) >= self._kept:
            del self._by_identity[next(iter(self._by_identity))]
        self._by_identity[id(candidates)] = (candidates, len(candidates), derived)
        return derived
