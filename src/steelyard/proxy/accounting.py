"""What is written down when a request has ended: the counters, and its line in the access log.

It is done for many requests in one go. That costs a third of what it costs between two other steps of a request, since
the processor's caches then hold this code and nothing else; and no client waits for it.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from steelyard.proxy.access_log import AccessLog, Entry
from steelyard.proxy.counters import Cell, Counters
from steelyard.proxy.forwarding import trace_id

if TYPE_CHECKING:
    from steelyard.proxy.exchange import Exchange
    from steelyard.proxy.relay import Relay

COUNTED: Final = frozenset({*map(int, HTTPStatus), 499, 529})
"""Statuses that are counted by themselves: those with a name, a client that left, Anthropic's "overloaded". Others
come from nodes, and are counted by their hundred, so that no node can fill the memory with them."""
BATCH: Final = 64
"""Requests that are written down together: about a quarter of a millisecond of work."""
KEPT_BYTES: Final = 4 << 20
"""Bytes of answers, kept for their token usage, above which nobody waits for the batch to be full."""


class Accounting:
    """Counts, and logs. `settle` is also called a few times a second, and before anybody reads the counters."""

    def __init__(self, counters: Counters, log: AccessLog) -> None:
        self.counters = counters
        self.log = log
        self._ended: list[tuple[Exchange, Relay | None, float]] = []
        self._kept = 0

    def add(self, exchange: Exchange, relay: Relay | None, now: float) -> None:
        """An exchange has ended."""
        ended = self._ended
        ended.append((exchange, relay, now))
        if relay is not None:
            self._kept += relay.kept_bytes
        if len(ended) >= BATCH or self._kept > KEPT_BYTES:
            self.settle()

    def add_own(self, entry: Entry) -> None:
        """A request that the gateway answered itself, without an exchange."""
        self.settle()  # lines stand in the order in which their requests ended
        self._count(self.counters.cell("", ""), entry.status, entry.outcome)
        if self.log.enabled:
            self.log.add(entry)

    def _count(self, cell: Cell, status: int, outcome: str) -> None:
        key = (status if status in COUNTED else status // 100 * 100, outcome)
        cell.outcomes[key] = cell.outcomes.get(key, 0) + 1

    def settle(self) -> None:
        """Write down what has ended since the last time."""
        ended = self._ended
        if not ended:
            return
        self._ended = []
        self._kept = 0
        # What was kept are times of a clock of its own; the log's are Unix times.
        offset = time.time() - ended[-1][2]
        for exchange, relay, now in ended:
            self._settle(exchange, relay, now, offset)
            # The two hold each other. Apart, they are freed here, and not some thousand requests later by the garbage
            # collector: their memory, which the caches still hold, is the next request's.
            exchange.attempt = None
            exchange.tunnel = None

    def _settle(self, exchange: Exchange, relay: Relay | None, now: float, offset: float) -> None:
        placement, work = exchange.placement, exchange.work
        status, outcome = exchange.status, exchange.outcome
        node = placement.node.name if placement is not None else ""
        route = exchange.route.name if exchange.route is not None else ""
        cell = self.counters.cells.get((route, node)) or self.counters.cell(route, node)
        self._count(cell, status, outcome)
        seconds = now - exchange.started_at
        cell.total.observe(seconds)
        tunnel = exchange.tunnel
        bytes_in = exchange.content.size if tunnel is None else tunnel.bytes_in
        cell.bytes_in += bytes_in
        first_byte = first_token = queued = 0.0
        bytes_out = prompt_tokens = completion_tokens = 0
        reason = ""
        if placement is not None:
            queued, reason = placement.queued, placement.reason
            self.counters.queue_seconds.observe(queued)
        if relay is not None:
            bytes_out = relay.bytes_out
            cell.bytes_out += bytes_out
            attempt = exchange.attempt
            if attempt is not None:
                first_byte = attempt.first_byte_at - attempt.sent_at
            cell.first_byte.observe(first_byte)
            scanner = relay.scanner
            if scanner is not None and scanner.first_token_at is not None:
                first_token = scanner.first_token_at - exchange.started_at
                cell.first_token.observe(first_token)
            usage = relay.usage()
            if usage is not None:
                prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
                cell.prompt_tokens += prompt_tokens
                cell.completion_tokens += completion_tokens
        elif tunnel is not None:
            bytes_out = tunnel.bytes_out
            cell.bytes_out += bytes_out
        if not self.log.enabled:
            return
        head = exchange.head
        entry = Entry(
            int((now + offset) * 1000.0) / 1000.0,
            exchange.request_id.decode("latin-1"),
            exchange.client.peer,
            head.method,
            head.path,
            status,
            outcome,
            int(seconds * 1e6),
            exchange.operation.dialect,
            route,
            node,
            reason,
            int(first_byte * 1e6),
            bytes_in,
            bytes_out,
            prompt_tokens,
            completion_tokens,
        )
        if work is not None:
            entry.model = work.asked_model or ""
            if work.stream:
                entry.stream = True
                entry.first_token_us = int(first_token * 1e6)
        if exchange.attempts != 1:
            entry.attempts = exchange.attempts
        if queued:
            entry.queued_us = int(queued * 1e6)
        if exchange.tenant:
            entry.tenant = exchange.tenant
        if b"traceparent" in head.read:
            entry.trace = trace_id(head.read[b"traceparent"])
        if exchange.error:
            entry.error = exchange.error
        self.log.add(entry)
