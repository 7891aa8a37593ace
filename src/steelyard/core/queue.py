"""The bounded line of requests that fit no node now but will later: first in, first out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final, Protocol

from steelyard.core.node import Node
from steelyard.core.placement import Placement
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route
from steelyard.core.work import Work


class Waiter(Protocol):
    """Whoever waits for a placement; told exactly once, unless it cancels its ticket before."""

    def placed(self, placement: Placement) -> None: ...

    def refused(self, refusal: Refusal) -> None: ...


LineKey = tuple[str, str, str | None, str | None, tuple[Node, ...]]
"""Route name, dialect, model, version, and the nodes it was tried on: what has the same candidates stands in the same
line."""


def line_key(work: Work, route: Route, tried: Collection[Node] = ()) -> LineKey:
    """The line in which the work waits."""
    return (route.name, work.dialect, work.model, work.version, tuple(tried))


class Ticket:
    """A place in the line."""

    __slots__ = (
        "candidates",
        "expires_at",
        "generation",
        "key",
        "queued_at",
        "route",
        "sequence",
        "waiter",
        "waiting",
        "work",
    )

    def __init__(
        self, work: Work, route: Route, waiter: Waiter, key: LineKey, sequence: int, now: float, wait: float
    ) -> None:
        self.work = work
        self.route = route
        self.waiter = waiter
        self.key = key
        self.sequence = sequence
        self.queued_at = now
        self.expires_at = now + wait
        self.waiting = True
        self.candidates: Sequence[Node] = ()
        """The nodes that it waits for, as they were in the fleet's `generation`."""
        self.generation = -1


ARRIVAL: Final = attrgetter("sequence")


class Queue:
    """Lines of tickets, one for each set of candidates, so that one model's full nodes do not block another's.

    The bound is per route. Inside a line nobody overtakes; between lines, the older head is tried first.
    """

    def __init__(self) -> None:
        self._lines: dict[LineKey, deque[Ticket]] = {}
        self._of_route: dict[str, int] = {}
        self._sequence = 0
        self.length = 0

    def waiting(self, key: LineKey) -> bool:
        """Whether somebody stands in this line."""
        return key in self._lines

    def of_route(self, route: str) -> int:
        """How many wait on a route."""
        return self._of_route.get(route, 0)

    def join(self, work: Work, route: Route, waiter: Waiter, key: LineKey, now: float, wait: float) -> Ticket | None:
        """A ticket at the end of the line; None when the route's line is full."""
        waiting = self._of_route.get(route.name, 0)
        if waiting >= route.queue.size:
            return None
        self._sequence += 1
        ticket = Ticket(work, route, waiter, key, self._sequence, now, wait)
        self._lines.setdefault(key, deque()).append(ticket)
        self._of_route[route.name] = waiting + 1
        self.length += 1
        return ticket

    def leave(self, ticket: Ticket) -> bool:
        """Give up the place (placed, cancelled, or expired). True the first time."""
        if not ticket.waiting:
            return False
        ticket.waiting = False
        line = self._lines[ticket.key]
        line.remove(ticket)
        if not line:
            del self._lines[ticket.key]
        waiting = self._of_route[ticket.route.name] - 1
        if waiting:
            self._of_route[ticket.route.name] = waiting
        else:
            del self._of_route[ticket.route.name]
        self.length -= 1
        return True

    def heads(self) -> list[Ticket]:
        """The first of every line, oldest first."""
        return sorted([line[0] for line in self._lines.values()], key=ARRIVAL)

    def lengths(self) -> dict[LineKey, int]:
        """How many stand in each line."""
        return {key: len(line) for key, line in self._lines.items()}

    def expired(self, now: float) -> list[Ticket]:
        """Those who have waited too long, oldest first; they still stand in the line."""
        late = [ticket for line in self._lines.values() for ticket in line if ticket.expires_at <= now]
        return sorted(late, key=ARRIVAL)
