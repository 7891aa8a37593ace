"""The client's side: a connection, its requests one after another, and the listener."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, cast

from steelyard.core.refusal import Refusal
from steelyard.dialects import recognise
from steelyard.proxy.access_log import Entry
from steelyard.proxy.closing import ClosingConnection
from steelyard.proxy.exchange import Exchange
from steelyard.proxy.forwarding import forwarding_lines
from steelyard.proxy.gateway import UNIX_PEER, Gateway
from steelyard.proxy.http1 import End, RequestHead, RequestReader
from steelyard.proxy.local import local_answer
from steelyard.proxy.proxy_protocol import proxy_header
from steelyard.proxy.relay import plain_answer
from steelyard.proxy.sockets import probe
from steelyard.proxy.switched import Switched
from steelyard.proxy.upstream import LARGE_READ, WRITE_HIGH_WATER

PIPELINED_BYTES: Final = 64 << 10
"""Bytes that are read ahead of the request that is being served. Behind them the connection is not read, and so nobody
sees that its client leaves; as long as there are fewer, its node is told at once."""


class ClientConnection(ClosingConnection):
    """One client connection. Requests are served one at a time, in order.

    An asyncio.Protocol by shape, not by inheritance: that lets it be compiled.
    """

    __slots__ = (
        "_ahead",
        "_backlog",
        "_exchange",
        "_forwarding",
        "_host",
        "_paused",
        "_preface",
        "_reader",
        "_receiving",
        "_requests",
        "_scheme",
        "_seen",
        "_since",
        "_tunnel",
        "_unread",
    )

    def __init__(self, gateway: Gateway, peer: str = "") -> None:
        """`peer` is the client's address where it is known better than by the connection's own."""
        super().__init__(gateway)
        self._reader = RequestReader(gateway.table, gateway.settings.limits.headers)
        self._exchange: Exchange | None = None
        self._receiving = False
        """The exchange's request is not whole yet: body events are its."""
        self._tunnel: Switched | None = None
        """Where the client's bytes go once they are no HTTP any more."""
        self._backlog: deque[RequestHead | bytes | End] = deque()
        """What came behind a request that is being served."""
        self._ahead = 0
        """Bytes of the reads that brought it."""
        self._paused = False
        """The exchange takes no further bytes of its request for now."""
        self._unread = False
        """The client does not take its answers as fast as they come."""
        self._requests = 0
        """Requests begun."""
        self._seen: tuple[bool, int] = (False, -1)
        """What the last `check` saw: whether a head was under way, and after how many requests."""
        self._since = 0.0
        """Since when that has not changed."""
        self._forwarding = b""
        """The forwarding lines of the last request, which are nearly always those of the next."""
        self._host = b""
        self._scheme = "http"
        self._preface: bytes | None = None
        """The first bytes of a proxy's connection, until it is known whether a PROXY header is in them."""
        self.peer = peer
        self.trusted = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.write = self._transport.write
        gateway = self._gateway
        counters = gateway.accounting.counters
        if transport.get_extra_info("ssl_object") is not None:
            self._scheme = "https"
        known = bool(self.peer)
        if not known:
            address = transport.get_extra_info("peername")
            self.peer = str(address[0]) if isinstance(address, tuple) else UNIX_PEER
        counters.connections += 1
        full = len(gateway.clients) >= gateway.connection_limit
        gateway.clients.add(self)
        if full:
            counters.connections_refused += 1
            self._refuse(Refusal("overloaded", "the gateway has as many connections as it may have", 1.0))
            self._close_soon()
            return
        self.trusted = gateway.trusts(self.peer)
        if self.trusted and not known:
            self._preface = b""

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._preface is not None:
            data = self._take_preface(data)
            if not data:
                return
        if len(data) > LARGE_READ:
            self._transport.pause_reading()
            self._gateway.loop.call_soon(self._read_on)
        if self._tunnel is not None:
            self._tunnel.from_client(data, self._gateway.clock())
            return
        reader, backlog = self._reader, self._backlog
        events = reader.feed(data)
        if backlog or reader.upgrading:
            backlog += events
            events.clear()
            self._read_ahead(len(data))
            if self._exchange is None and not self._unread:
                self._go_on()
            return
        for event in events:
            exchange = self._exchange
            if backlog or exchange is None or not self._receiving:
                self._take(event)
            elif type(event) is bytes:
                exchange.body(event)
            else:
                self._receiving = False
                exchange.body_end()
        events.clear()  # or the list would hold this request's head and body until the next one comes
        if backlog:
            self._read_ahead(len(data))
        elif reader.error is not None and (self._exchange is None or self._receiving):
            self._broken()

    def _take_preface(self, data: bytes) -> bytes:
        """What follows the PROXY header, if there is one; nothing while that cannot be told."""
        data = cast(bytes, self._preface) + data
        try:
            header = proxy_header(data)
        except ValueError:
            self._gateway.accounting.counters.bad_requests += 1
            self.abort()
            return b""
        if header is None:
            self._preface = data
            return b""
        self._preface = None
        if header.source:
            self.peer = header.source
            self.trusted = self._gateway.trusts(header.source)
        return data[header.length :]

    def _read_ahead(self, size: int) -> None:
        self._ahead += size
        if self._ahead > PIPELINED_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if not self._paused and self._ahead <= PIPELINED_BYTES and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        if self._tunnel is not None:
            self._tunnel.client_ended()
            return True
        # A client that closes its sending side is taken for gone, as nginx and Go do: a node must not compute for
        # somebody who has hung up, and the two cannot be told apart.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._gateway.clients.discard(self)
        self._backlog.clear()
        exchange, self._exchange = self._exchange, None
        self._tunnel = None
        if exchange is not None:
            exchange.client_gone(exc is not None)

    def pause_writing(self) -> None:
        self._unread = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        self._unread = False
        if self._exchange is not None:
            self._exchange.client_resumed()
        elif not self._closing:
            self._go_on()

    # -- events of the reader

    def _take(self, event: RequestHead | bytes | End) -> None:
        if self._closing:
            return
        if self._exchange is None and not self._unread and not self._backlog:
            if type(event) is RequestHead:
                self._begin(event)
            return
        self._backlog.append(event)

    def _begin(self, head: RequestHead) -> None:
        gateway = self._gateway
        self._requests += 1
        if head.method != "POST":
            answer = local_answer(gateway, head)
            if answer is not None:
                self.write(answer.data)
                if not answer.probe:
                    self._note(answer.status, answer.outcome, answer.request_id.decode("latin-1"), head)
                if head.has_body or gateway.draining or not head.keep_alive:
                    # A body that nobody asked for is read, or its client would see a reset instead of the answer.
                    self._receiving = head.has_body
                    self._close()
                return
        exchange = self._exchange = Exchange(self, head, gateway, gateway.clock())
        gateway.exchanges.add(exchange)
        gateway.begun += 1
        self._receiving = True
        exchange.start()

    def _broken(self) -> None:
        """What follows is no HTTP: say so and close. Earlier requests on the connection have their answers."""
        error = self._reader.error
        if error is None or self._closing:
            return
        self._gateway.accounting.counters.bad_requests += 1
        if self._exchange is None:
            self._refuse(Refusal(error.code, str(error)))
            self._close()
        else:
            self._exchange.request_broken(error)

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse something that has no head: it has no dialect, no path and no tenant either."""
        request_id = self._gateway.request_id(None)
        text = request_id.decode("latin-1")
        body = recognise("GET", "/").error(refusal.status, refusal.code, refusal.message, text)
        lines = b"x-request-id: %b\r\n" % request_id
        if refusal.retry_after is not None:
            lines += b"Retry-After: %d\r\n" % refusal.retry_after
        self.write(plain_answer(refusal.status, body, b"application/json", lines, None, True))
        self._note(refusal.status, refusal.code, text, None, refusal.message)

    def _note(self, status: int, outcome: str, request_id: str, head: RequestHead | None, error: str = "") -> None:
        method, path = ("", "") if head is None else (head.method, head.path)
        entry = Entry(round(time.time(), 3), request_id, self.peer, method, path, status, outcome, 0, error=error)
        entry.attempts = 0
        self._gateway.accounting.add_own(entry)

    # -- what an exchange calls

    def pause_reading(self) -> None:
        self._paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._read_on()

    def begin_tunnel(self, tunnel: Switched) -> bytes:
        """From now on the client's bytes are the tunnel's; those are returned that have come already."""
        self._tunnel = tunnel
        self._ahead = 0
        self._read_on()
        probe(self._transport)
        return self._reader.take_held()

    def exchange_ended(self, exchange: object, closing: bool) -> None:
        """The answer is written, or will not be."""
        if self._exchange is not exchange:
            return
        self._exchange = self._tunnel = None
        if self._closing:
            return
        if closing or self._receiving or self._gateway.draining:
            self._close()
            return
        self.resume_reading()
        if self._backlog or self._reader.error is not None or self._reader.upgrading:
            # Not from here: the exchange is still on the stack.
            self._gateway.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The next of the requests that have come already, then what is still in the socket."""
        backlog = self._backlog
        while backlog and not (self._closing or self._unread):
            exchange = self._exchange
            if exchange is None:
                event = backlog.popleft()
                if type(event) is RequestHead:
                    self._begin(event)
            elif self._receiving:
                event = backlog.popleft()
                if type(event) is bytes:
                    exchange.body(event)
                else:
                    self._receiving = False
                    exchange.body_end()
            else:
                return
        if backlog or self._closing:
            return
        self._ahead = 0
        self._read_on()
        if self._reader.upgrading and self._exchange is None and not self._unread:
            # The other protocol was refused: what came behind is the next request.
            backlog += self._reader.go_on()
            self._reader.events.clear()
            if backlog:
                self._gateway.loop.call_soon(self._go_on)
                return
        if not self._unread and (self._exchange is None or self._receiving):
            self._broken()

    def forwarding_lines(self, head: RequestHead) -> bytes:
        """X-Forwarded-* and Via for the node. What the client sent of them counts only from a trusted peer."""
        read = head.read
        if self.trusted or b"via" in read or not head.minor:
            return forwarding_lines(self.peer, self._scheme, head, self.trusted)
        host = read.get(b"host", b"")
        if host != self._host or not self._forwarding:
            self._host = host
            self._forwarding = forwarding_lines(self.peer, self._scheme, head)
        return self._forwarding

    def close_if_idle(self) -> None:
        """Close unless a request is under way, or the connection is being closed already."""
        if self._exchange is None and not self._closing:
            self._close_soon()

    def _close(self) -> None:
        """No further request. What the client still sends is read for a moment, so that it sees the answer."""
        if not self._receiving and self._reader.error is None:
            self._close_soon()
            return
        self._ahead = 0
        self._paused = False
        self._linger()
        self._read_on()

    # -- time

    def use_settings(self) -> None:
        """The configuration has changed: the next request is read by the new one."""
        gateway = self._gateway
        self._reader.use(gateway.table, gateway.settings.limits.headers)
        self.trusted = gateway.trusts(self.peer)
        self._forwarding = b""

    def check(self, now: float) -> None:
        """Called about once a second: end an idle connection, and one that does not get on with its head."""
        if self._abort_at:
            self._check_closing(now)
            return
        if self._exchange is not None or self._closing:
            self._seen = (False, -1)
            return
        in_head = not self._reader.between_messages
        seen = (in_head, self._requests)
        if seen != self._seen:
            self._seen = seen
            self._since = now
        limits = self._gateway.settings.limits
        waited = now - self._since
        if self._unread or self._backlog:
            # It does not take its answers.
            if waited > limits.keep_alive:
                self.abort()
        elif in_head:
            if waited > limits.header_wait:
                self._gateway.accounting.counters.bad_requests += 1
                message = f"the request's head was not complete in {limits.header_wait:g} s"
                self._refuse(Refusal("client_timeout", message))
                self._close_soon()
        elif waited > limits.keep_alive:
            self._close_soon()
