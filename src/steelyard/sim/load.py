"""The open loop: every request of a trace is sent when it is due, whatever has become of those before.

A closed loop would wait for slow answers and so leave out just the requests that would have suffered (coordinated
omission). For the same reason latencies count from the moment at which a request was due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from steelyard.emulator.clock import EmulatedClock
from steelyard.sim.http_client import Answer, HttpClient
from steelyard.sim.traces import Arrival

REQUEST_ID = "x-request-id"
ERROR_TEXT = 300
"""Characters of an error's text that are kept."""
PATIENCE = 1800.0
"""Seconds of the trace's time after which a client leaves. Longer than the gateway's limits: it must answer first."""


class Record:
    """What became of one request. Times are seconds of the clock since the load began.

    `outcome`: "answered" (a whole good answer), "error" (an explicit error: a status from 400 on, or an error event in
    a stream), "lost" (neither: the connection broke, the stream stopped without its end, nothing came in time).
    """

    __slots__ = (
        "due",
        "end",
        "error",
        "events",
        "first_byte",
        "first_event",
        "id",
        "kind",
        "last_event",
        "node",
        "outcome",
        "sent",
        "size",
        "status",
    )

    def __init__(self, id: str, kind: str, due: float) -> None:
        self.id = id
        self.kind = kind
        self.due = due
        self.sent: float | None = None
        """When its bytes were written."""
        self.first_byte: float | None = None
        self.first_event: float | None = None
        self.last_event: float | None = None
        self.end: float | None = None
        self.status = 0
        self.outcome = ""
        """Empty while it is under way."""
        self.error = ""
        self.node = ""
        """As the answer's x-steelyard-node says."""
        self.events = 0
        self.size = 0
        """Bytes of the answer's body."""

    @property
    def latency(self) -> float:
        """Seconds from when it was due to its end."""
        assert self.end is not None
        return self.end - self.due

    @property
    def out_of_memory(self) -> bool:
        """Whether the error is that of a card that is full."""
        return self.outcome == "error" and "out of memory" in self.error.lower()


class Load:
    """Sends a trace. `records` are in the order of the trace, complete when `run` returns."""

    def __init__(
        self,
        client: HttpClient,
        clock: EmulatedClock,
        trace: Iterable[Arrival],
        *,
        name: str = "load",
        patience: float = PATIENCE,
        ended: Callable[[Record], object] | None = None,
        keep: bool = True,
    ) -> None:
        """`ended` is called with every record that is complete; without `keep` they are not kept beyond that."""
        self.records: list[Record] = []
        self.sent = 0
        self.under_way: dict[Record, Answer] = {}
        self.began = clock.now()
        self._client = client
        self._clock = clock
        self._trace = iter(trace)
        self._next: Arrival | None = None
        self._name = name
        self._patience = patience
        self._ended = ended
        self._keep = keep
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._sending = True

    async def run(self) -> None:
        """Send everything and wait for the end of every answer. When cancelled, what is under way is left."""
        self.began = self._clock.now()
        self._next = next(self._trace, None)
        try:
            self._send_due()
            await self._over.wait()
        finally:
            self.stop()
            for answer in list(self.under_way.values()):
                self._client.abandon(answer, "the load was stopped")

    def stop(self) -> None:
        """Send nothing more. `run` returns when what is under way has ended."""
        self._sending = False
        self._next = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._check_over()

    def _send_due(self) -> None:
        self._timer = None
        while (arrival := self._next) is not None:
            if self.began + arrival.at > self._clock.now():
                self._timer = self._clock.call_at(self.began + arrival.at, self._send_due)
                return
            self._next = next(self._trace, None)
            self._send(arrival)
        self._sending = False
        self._check_over()

    def _send(self, arrival: Arrival) -> None:
        record = Record(f"{self._name}-{self.sent:06}", arrival.kind, arrival.at)
        self.sent += 1
        if self._keep:
            self.records.append(record)
        request = arrival.request
        request = request._replace(headers=(*request.headers, (REQUEST_ID, record.id)))
        patience = self._clock.call_later(self._patience, self._leave, record)
        self.under_way[record] = self._client.send(request, partial(self._answered, record, patience))

    def _leave(self, record: Record) -> None:
        self._client.abandon(self.under_way[record], f"no answer within {self._patience:g} s")

    def _answered(self, record: Record, patience: asyncio.TimerHandle, answer: Answer) -> None:
        patience.cancel()
        read(record, answer, self.began)
        self.under_way.pop(record, None)
        if self._ended is not None:
            self._ended(record)
        self._check_over()

    def _check_over(self) -> None:
        if not self._sending and not self.under_way:
            self._over.set()


def read(record: Record, answer: Answer, began: float) -> None:
    """Fill a record in from what has come."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    record.sent = since(answer.sent)
    record.first_byte = since(answer.first_byte)
    record.end = since(answer.end)
    record.status = answer.status
    record.size = answer.size
    record.node = answer.headers.get("x-steelyard-node", "")
    events = answer.events
    if events is not None:
        record.events = events.received
        record.first_event = since(events.first)
        record.last_event = since(events.last)
    if events is not None and events.error:
        record.outcome, record.error = "error", events.error[:ERROR_TEXT]
    elif not answer.complete:
        record.outcome, record.error = "lost", answer.failure
    elif answer.status >= 400:
        record.outcome, record.error = "error", answer.body[:ERROR_TEXT].decode("utf-8", "replace")
    elif events is not None and not events.ended:
        record.outcome, record.error = "lost", "the stream stopped without its end"
    else:
        record.outcome = "answered"
