"""What a node did: one record a request that asked for work, and the node's counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Enough for every request of a scene (3,000) or a bench of some minutes, and bounded: about 30 MB.
LOG_SIZE = 100_000


class Execution:
    """One request that asked the node for work. Times are emulated seconds of the fleet's clock.

    ``outcome`` is how it ended for the client: ``finished`` (a complete good answer), ``oom``, ``failed`` (another
    error, a cut or a crash), ``aborted`` (the client left first), None while it is open. ``computed_at`` is when
    the card was done with it, which may be later than ``ended_at``.
    """

    __slots__ = (
        "arrived_at",
        "computed_at",
        "ended_at",
        "first_byte_at",
        "id",
        "memory",
        "messages",
        "model",
        "on_lost",
        "oom",
        "outcome",
        "path",
        "request_id",
        "seconds",
        "started_at",
        "status",
        "tokens_in",
        "tokens_out",
    )

    def __init__(self, id: str, request_id: str, path: str, arrived_at: float) -> None:
        self.id = id
        self.request_id = request_id  # the x-request-id header; "" when there was none
        self.path = path
        self.model = ""
        self.arrived_at = arrived_at
        self.started_at: float | None = None
        self.first_byte_at: float | None = None
        self.computed_at: float | None = None
        self.ended_at: float | None = None
        self.status: int | None = None
        self.outcome: str | None = None
        self.oom = False
        self.memory = 0  # bytes on the card
        self.seconds = 0.0  # work on the idle card
        self.tokens_in = 0
        self.tokens_out = 0
        self.messages = 0  # of a chat: how many the node saw
        self.on_lost: Callable[[], None] | None = None  # how the engine stops computing when the client is lost

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "on_lost"}


@dataclass
class NodeStats:
    """Counters of a node. ``started`` = finished + oom + failed + aborted + open."""

    started: int = 0
    finished: int = 0
    oom: int = 0
    failed: int = 0
    aborted: int = 0
    open: int = 0
    useful_seconds: float = 0.0  # work of the answers that reached their client whole
    log: deque[Execution] = field(default_factory=lambda: deque(maxlen=LOG_SIZE))

    def begin(self, execution: Execution) -> None:
        self.started += 1
        self.open += 1
        self.log.append(execution)

    def end(self, execution: Execution, how: str, now: float) -> None:
        """``how`` the exchange ended: ``sent``, ``gone`` (the client left) or ``cut``. Idempotent."""
        if execution.outcome is not None:
            return
        if how == "gone":
            outcome = "aborted"
        elif how == "sent" and execution.status is not None and execution.status < 400 and not execution.oom:
            outcome = "finished"
            self.useful_seconds += execution.seconds
        else:
            outcome = "oom" if execution.oom else "failed"
        execution.outcome = outcome
        execution.ended_at = now
        self.open -= 1
        setattr(self, outcome, getattr(self, outcome) + 1)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "log"}
