"""What a decision says: a Placement, or for people an Explanation."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.core.ledger import Lease
from steelyard.core.node import Node
from steelyard.core.route import Route


class Placement:
    """Where a Work goes: the node, its lease, and the reason."""

    __slots__ = ("_reason", "at", "considered", "lease", "node", "policy", "queued", "route", "score")

    def __init__(
        self, lease: Lease, route: Route, considered: int, score: float | None, queued: float, now: float
    ) -> None:
        self.lease = lease
        self.node = lease.node
        self.route = route
        self.policy = route.policy.name
        self.considered = considered
        """Candidates among which the node was picked."""
        self.score = score
        """What the policy compared, before the reservation; None where it does not compare."""
        self.queued = queued
        """Seconds spent in the line."""
        self.at = now
        self._reason = ""

    @property
    def reason(self) -> str:
        """In words and numbers. Written down once: the answer's header and the log both want it."""
        if not self._reason:
            if self.score is None:
                self._reason = f"{self.policy} among {self.considered}"
            else:
                # Not an f-string: it is made for nearly every request, and the compiler makes a slow call of `:.4g`.
                self._reason = "%s %.4g among %d" % (self.policy, self.score, self.considered)  # noqa: UP031
            work = self.lease.work
            if work.fallback:
                self._reason += f"; {work.model} instead of {work.asked_model}"
        return self._reason


@dataclass(slots=True)
class Option:
    """One node in an explanation."""

    node: Node
    objection: str | None
    """Why it cannot take the work; None when it can."""
    score: float | None


@dataclass(slots=True)
class Explanation:
    """Where a Work would go, and why; nothing is reserved."""

    outcome: str
    """placed, queued, or the code of the refusal."""
    node: Node | None
    reason: str
    options: list[Option]
