"""One sending of a request to one node, up to the node's answer or its failure.

    CONNECTING -> SENT -> RELAYING

An attempt owns its connection, its lease, and the answer's way to the client. What becomes of the request when it
fails is the exchange's to decide.
"""

from __future__ import annotations

import asyncio
from typing import Final

from steelyard.core.eligibility import CANCELS_ON_DISCONNECT
from steelyard.core.placement import Placement
from steelyard.core.refusal import Refusal
from steelyard.proxy.forwarding import request_lines
from steelyard.proxy.http1 import ResponseHead, status_line, without
from steelyard.proxy.relay import LENGTH, Relay
from steelyard.proxy.request import Request
from steelyard.proxy.upstream import NodeConnection, Sink, Upstream

UNSURE: Final = frozenset({"openai", "generic"})
"""Engines that nobody knows. Servers stop a stream when its client leaves, since the next write fails; a plain answer
they may go on computing (seen with llama-cpp-python's server)."""
BUSY: Final = frozenset({429, 503})
"""Statuses by which an engine refuses before it begins (its queue is full, it is loading)."""
BUSY_BODY: Final = 16 << 10
"""A busy answer up to this size, in bytes, is held until it is known whether another node takes the request."""
RACE_SECONDS: Final = 0.25
"""A reused connection that breaks within this time, without a byte, was being closed by the node."""


class Attempt(Sink):
    """Receives the answer of its node."""

    connection: NodeConnection | None = None
    sent_at = 0.0
    first_byte_at = 0.0
    """When the node's head came; 0.0 until then."""
    relay: Relay | None = None
    """The answer on its way; None until the client has its head."""
    client_paused_at = 0.0
    """Since when the client does not read; 0.0 while it does."""
    _connecting: asyncio.Task[None] | None = None
    dispatched = False
    """The node has got bytes of the request."""
    _abandoned = False
    """The node was left with the request, and may go on computing."""
    raced = False
    """The request is on its second connection: the node may have had it from the first, and have died of it."""
    _held: ResponseHead | None = None
    """The head of an answer that is held back: a busy one, until it is known whether another node takes the request;
    or one of a stream, until its first byte, so that a node that dies before it can still be replaced."""
    _held_body = b""
    _node_paused_at = 0.0
    """Since when the node does not take the body; 0.0 while it does."""
    _heard_at = 0.0
    _first_byte_limit = 0.0

    def __init__(self, request: Request, placement: Placement) -> None:
        self._request = request
        self.placement = placement

    def start(self, upstream: Upstream, fresh: bool) -> None:
        """Send the request, over an idle connection or (`fresh`) a new one."""
        gateway = self._request.gateway
        now = self.sent_at = gateway.clock()
        if not fresh:
            connection = upstream.take_idle(now)
            if connection is not None:
                self._send(connection, now)
                return
        self._connecting = gateway.loop.create_task(self._connect(upstream))

    async def _connect(self, upstream: Upstream) -> None:
        gateway = self._request.gateway
        try:
            connection = await upstream.connect()
        except OSError as error:
            self._connecting = None
            try:
                self._not_connected(error)
            except Exception:
                # Nobody waits for this task: what is wrong with another request must not leave this one hanging.
                self._request.refuse(Refusal("node_broke", "cannot connect to the node"))
                raise
            return
        self._connecting = None
        gateway.accounting.counters.node_connections += 1
        self._send(connection, gateway.clock())

    def _not_connected(self, error: OSError) -> None:
        request = self._request
        if request.gateway.out_of_descriptors(error):
            request.refuse(Refusal("overloaded", "the gateway has no file descriptors left", 5.0))
            return
        if isinstance(error, ConnectionRefusedError):
            # A fact, not a judgement: nobody listens there, whatever the discovery still says.
            request.gateway.node_refused(self.placement.node)
        if not request.retry("refused"):
            request.refuse(Refusal("node_broke", f"cannot connect to the node: {error.strerror or error}", 1.0))

    def _send(self, connection: NodeConnection, now: float) -> None:
        request = self._request
        head, body, work, route = request.head, request.content, request.work, request.route
        assert work is not None
        assert route is not None
        connection.take(self, head.method, head.upgrade)
        self.connection = connection
        self.dispatched = True
        self.sent_at = self._heard_at = now
        if work.stream:
            self._first_byte_limit = route.timeouts.first_byte
        else:
            footprint = work.footprint
            expected = footprint.seconds_limit if footprint is not None else 0.0
            self._first_byte_limit = max(route.timeouts.plain_first_byte, expected)
        target = head.target
        if request.renaming is not None:
            target = request.renaming.target(request.operation, target)
        lines = request_lines(
            head,
            target,
            connection.upstream,
            request.client.forwarding_lines(head),
            request.request_id,
            request.gateway.own_keys,
            body.framing(),
        )
        body.send(connection, lines, request.received)
        if self.client_paused_at:
            connection.pause()
        if body.streamed and not self._node_paused_at:
            request.client.resume_reading()

    # -- the node's side: Sink

    def node_interim(self, head: ResponseHead) -> None:
        # 100 answers an expectation that the gateway has met itself.
        if head.status > 101 and self._request.head.minor:
            # RFC 9110, 8.6: it has no length.
            lines = without(head.relay, LENGTH)
            self._request.client.write(b"".join((status_line(head.status, head.reason), *lines, b"\r\n")))

    def node_switched(self, head: ResponseHead, behind: bytes, now: float) -> None:
        connection, self.connection = self.connection, None
        assert connection is not None
        self.first_byte_at = now
        self._request.begin_tunnel(connection, head, behind, now)

    def node_head(self, head: ResponseHead, now: float) -> None:
        request = self._request
        self.first_byte_at = self._heard_at = now
        status = head.status
        if status in BUSY:
            hold = (head.content_length or 0) <= BUSY_BODY and request.may_go_elsewhere()
        else:
            hold = status == 200 and is_stream(head) and request.may_redispatch()
        if hold:
            self._held = head
        else:
            self._begin_answer(head)

    def _begin_answer(self, head: ResponseHead) -> None:
        request = self._request
        gateway = request.gateway
        self._held = None
        # What is left of a request that is answered before it was whole cannot be told from the next one.
        closing = gateway.draining or not request.received
        lines = request.own_lines()
        request.take_out(head)
        self.relay = Relay(request.client, request.head, head, request.operation, lines, closing, request.renaming)
        if request.received:
            # The client has a part of the answer: the request is not sent again.
            request.content.drop()

    def node_body(self, data: bytes, last: bool, now: float) -> None:
        self._heard_at = now
        held = self._held
        if held is not None:
            if held.status in BUSY and len(self._held_body) + len(data) <= BUSY_BODY:
                self._held_body += data
                return
            if held.status not in BUSY:
                self.first_byte_at = now
            self._answer_held()
            if not last:
                self._flush_after(data, now)
                return
        assert self.relay is not None
        self.relay.body(data, now, last)

    def _flush_after(self, data: bytes, now: float) -> None:
        assert self.relay is not None
        self.relay.body(data, now, True)
        self.relay.flush()

    def _answer_held(self) -> None:
        """The answer that was held back goes to the client after all."""
        head, data = self._held, self._held_body
        self._held_body = b""
        assert head is not None
        self._begin_answer(head)
        if data and self.relay is not None:
            self.relay.body(data, self._heard_at, True)

    def node_flush(self) -> None:
        if self.relay is not None:
            self.relay.flush()

    def node_end(self) -> None:
        self.connection = None
        request, held = self._request, self._held
        if held is not None:
            if held.status in BUSY and request.retry("busy"):
                return
            self._answer_held()
        relay = self.relay
        assert relay is not None
        relay.end(self._heard_at)
        request.answered(relay.status)

    def node_lost(self, reason: str, reset: bool) -> None:
        connection, self.connection = self.connection, None
        request = self._request
        self._held, self._held_body = None, b""
        if self.relay is not None:
            request.break_off("node_broke", f"the node broke off its answer: {reason}")
            return
        assert connection is not None
        quick = request.gateway.clock() - self.sent_at < RACE_SECONDS
        if reset and quick and connection.reused and not self.raced and not request.content.sent:
            # The node was closing the idle connection while the request was on its way. It is no fault of the node,
            # so the placement stands, and a fresh connection cannot lose that race.
            self.raced = True
            request.gateway.accounting.counters.retried("race")
            self.start(connection.upstream, fresh=True)
        elif not request.redispatch("broke"):
            request.refuse(Refusal("node_broke", f"the node broke off before it answered: {reason}"))

    def node_pause(self) -> None:
        self._node_paused_at = self._request.gateway.clock()
        # A client whose request is whole is read on: it may leave.
        if not self._request.received:
            self._request.client.pause_reading()

    def node_resume(self) -> None:
        self._node_paused_at = 0.0
        request = self._request
        self._heard_at = request.gateway.clock()
        request.client.resume_reading()
        if self.connection is not None:
            request.content.go_on(self.connection)

    # -- the client's side

    def body(self) -> bool:
        """More of a streamed body has come. False when there is no connection yet to pass it on to."""
        self._heard_at = self._request.gateway.clock()
        if self.connection is None:
            return False
        self._request.content.pass_on(self.connection)
        return True

    def body_end(self) -> None:
        """A streamed body is whole."""
        if self.connection is not None:
            self._request.content.finish(self.connection)

    def client_paused(self, now: float) -> None:
        """The client reads slower than the node writes: stop reading the node."""
        self.client_paused_at = now
        self._request.client.mark()
        if self.connection is not None:
            self.connection.pause()

    def client_resumed(self, now: float) -> None:
        self.client_paused_at = 0.0
        self._heard_at = now
        if self.connection is not None:
            self.connection.resume()

    # -- time

    def check(self, now: float) -> None:
        """End it when somebody has been silent for too long."""
        request = self._request
        assert request.route is not None
        timeouts = request.route.timeouts
        if self.connection is None:
            if self._connecting is None:
                request.refuse(Refusal("node_broke", "the connection to the node was lost"))
            elif now - self.sent_at > timeouts.connect:
                self._connect_timeout(timeouts.connect)
        elif self.client_paused_at:
            # The client does not read: the node is not accused of silence.
            if now - self.client_paused_at <= timeouts.idle:
                return
            if request.client.takes():
                self.client_paused_at = now
                return
            request.break_off("client_stalled", f"the client read nothing for {timeouts.idle:g} s")
            request.client.abort()
        elif self._node_paused_at:
            if now - self._node_paused_at > timeouts.idle:
                self._silent(f"the node took no further byte of the request within {timeouts.idle:g} s")
        elif not request.received:
            if now - self._heard_at > timeouts.idle:
                message = f"no byte of the request's body came for {timeouts.idle:g} s"
                if self.relay is not None:
                    request.break_off("client_timeout", message)
                else:
                    request.refuse(Refusal("client_timeout", message))
        elif self._awaits_first_byte():
            if now - self.sent_at > self._first_byte_limit:
                self._silent(f"no first byte from the node within {self._first_byte_limit:g} s")
        elif now - self._heard_at > timeouts.idle:
            self._silent(f"no further byte from the node within {timeouts.idle:g} s")

    def _awaits_first_byte(self) -> bool:
        relay, work = self.relay, self._request.work
        # Engines send the head of a stream at once, and its first event when the prompt has been read.
        return relay is None or (work is not None and work.stream and not relay.bytes_out)

    def _connect_timeout(self, limit: float) -> None:
        self.drop()
        if not self._request.retry("refused"):
            message = f"the node did not accept the connection within {limit:g} s"
            self._request.refuse(Refusal("node_silent", message))

    def _silent(self, message: str) -> None:
        if self.relay is not None:
            self._request.break_off("node_silent", message)
            return
        self.drop()
        if not self._request.redispatch("silent"):
            self._request.refuse(Refusal("node_silent", message))

    # -- the end

    def drop(self) -> None:
        """Give up what is under way: the node sees the connection break at once."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self.connection is not None:
            self._abandoned = True
            self.connection.abort()
            self.connection = None

    def end(self, now: float) -> None:
        """Give everything back. The lease stands on, orphaned, where a node was left that goes on computing."""
        request, lease = self._request, self.placement.lease
        if self.connection is not None or self._connecting is not None:
            self.drop()
        balancer = request.gateway.balancer
        if self._abandoned and request.received and self._goes_on():
            balancer.ledger.orphan(lease, now)
        else:
            balancer.release(lease, now)

    def _goes_on(self) -> bool:
        """Whether the node goes on computing when its connection is closed."""
        engine, relay, work = self.placement.node.engine, self.relay, self._request.work
        if engine not in CANCELS_ON_DISCONNECT:
            # A plain answer that has begun is computed.
            return relay is None or relay.scanner is not None
        return engine in UNSURE and relay is None and work is not None and not work.stream


def is_stream(head: ResponseHead) -> bool:
    """Whether an answer is a stream of events."""
    content_type = head.read.get(b"content-type")
    return content_type is not None and content_type.startswith(b"text/event-stream")
