"""The gateway's side of a node: its address, its pool of idle connections, and the connection itself."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast
from urllib.parse import urlsplit

from steelyard.core.node import Node
from steelyard.proxy.http1 import MessageError, ResponseHead, ResponseReader
from steelyard.proxy.switched import Switched
from steelyard.proxy.tls import node_context

KEEP_ALIVE_SECONDS: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn, the server in front of most engines,
closes it, so that the race between its closing and our next request is rare."""
IDLE_AT_MOST: Final = 1024
"""Idle connections kept a node."""
LARGE_READ: Final = 128 * 1024
"""Bytes of one read after which a connection lets the others have their turn. libuv would read up to 32 times in a row
from one socket, some 8 MiB: a stall of tens of milliseconds for everybody else."""
WRITE_HIGH_WATER: Final = 256 * 1024
"""Bytes waiting to be sent to a peer above which the other side is no longer read."""


class Sink(ABC):
    """Who receives an answer: interim*, head, body*, then end or lost, exactly once."""

    __slots__ = ()

    @abstractmethod
    def node_interim(self, head: ResponseHead) -> None: ...

    @abstractmethod
    def node_head(self, head: ResponseHead, now: float) -> None: ...

    @abstractmethod
    def node_body(self, data: bytes, last: bool, now: float) -> None:
        """`last`: node_end follows at once."""

    @abstractmethod
    def node_switched(self, head: ResponseHead, behind: bytes, now: float) -> None:
        """The last call: the node goes on with the protocol that it was offered, and has sent `behind` of it. The
        connection is to get a `switched`."""

    @abstractmethod
    def node_flush(self) -> None:
        """The head came, with what there was behind it, and the end is yet to come."""

    @abstractmethod
    def node_end(self) -> None: ...

    @abstractmethod
    def node_lost(self, reason: str, reset: bool) -> None:
        """The connection broke before the answer was whole; `reset` when the node sent no byte of it."""

    @abstractmethod
    def node_pause(self) -> None:
        """The node does not take the request's body as fast as it comes."""

    @abstractmethod
    def node_resume(self) -> None: ...


class NodeConnection:
    """One connection to a node, used by one Sink at a time. An asyncio.Protocol by shape, as ClientConnection is."""

    __slots__ = (
        "answered",
        "idle_since",
        "paused",
        "reader",
        "request_sent",
        "reused",
        "sink",
        "switched",
        "transport",
        "upstream",
    )

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.reader = ResponseReader()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.sink: Sink | None = None
        self.switched: Switched | None = None
        """Takes the place of the sink once another protocol is spoken."""
        self.answered = False
        """A byte of the current answer has come."""
        self.request_sent = False
        """The sink has written all of its request; before that the connection cannot carry another."""
        self.reused = False
        """It has carried a request before: a reset may only mean that the node was closing it."""
        self.paused = False
        """The answer is not read: the client does not take it as fast as it comes."""
        self.idle_since = 0.0

    # what the owner of an exchange calls

    def take(self, sink: Sink, method: str, upgrade: bytes) -> None:
        """Make it the sink's, for one request and its answer. The request is written to `transport` after that."""
        self.sink = sink
        self.answered = False
        self.request_sent = False
        self.reader.expect(method, upgrade)
        if self.paused:
            self.resume()

    def pause(self) -> None:
        """Read no further for now."""
        if not self.paused and not self.transport.is_closing():
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused and not self.transport.is_closing():
            self.paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Give the answer up: the node sees the connection break at once."""
        self.sink = self.switched = None
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.upstream.open.add(self)

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        if sink is None and self.switched is None:
            # Nothing was asked: an idle connection that speaks is of no more use.
            self.transport.abort()
            return
        if len(data) > LARGE_READ:
            self.transport.pause_reading()
            self.upstream.loop.call_soon(self._read_on)
        if sink is None:
            cast(Switched, self.switched).from_node(data)
            return
        self.answered = True
        reader, upstream = self.reader, self.upstream
        now = upstream.clock()
        try:
            reader.feed(data)
        except MessageError as error:
            self._lost(str(error))
            return
        heads = bool(reader.heads)
        if heads:
            for head in reader.heads:
                if head.status < 200:
                    sink.node_interim(head)
                else:
                    sink.node_head(head, now)
            if reader.switched is not None:
                head = reader.heads.pop()
                reader.heads.clear()
                self.sink = None
                sink.node_switched(head, reader.switched, now)
                return
            reader.heads.clear()
            if self.sink is not sink:
                return
        if reader.pieces:
            sink.node_body(reader.take_body(), reader.complete, now)
            if self.sink is not sink:
                return
        if not reader.complete:
            if heads:
                sink.node_flush()
            return
        self.sink = None
        if not self.request_sent:
            # What is left of the request must not wait for a node that does not want it.
            self.transport.abort()
        elif reader.keep_alive and not reader.surplus:
            upstream.put_back(self, now)
        else:
            self.transport.close()
        sink.node_end()

    def _read_on(self) -> None:
        if not self.paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        if self.switched is not None:
            self.switched.node_ended()
            return True
        if self.sink is not None and self.reader.at_eof():
            self._end_at_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.open.discard(self)
        if self.switched is not None:
            switched, self.switched = self.switched, None
            switched.node_lost(exc)
        elif self.sink is not None:
            if exc is None and self.reader.at_eof():
                self._end_at_eof()
            else:
                self._lost(str(exc) if exc is not None else "the node closed the connection")
        self.upstream.forget(self)

    def pause_writing(self) -> None:
        if self.sink is not None:
            self.sink.node_pause()
        elif self.switched is not None:
            self.switched.node_pause()

    def resume_writing(self) -> None:
        if self.sink is not None:
            self.sink.node_resume()
        elif self.switched is not None:
            self.switched.node_resume()

    def _end_at_eof(self) -> None:
        sink = cast(Sink, self.sink)
        self.sink = None
        self.transport.close()
        sink.node_end()

    def _lost(self, reason: str) -> None:
        sink = cast(Sink, self.sink)
        self.sink = None
        self.transport.abort()
        sink.node_lost(reason, not self.answered)


class Upstream:
    """A node's address and connections. Made for each Node, and closed with it."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.node = node
        self.loop = loop
        self.clock = clock
        parts = urlsplit(node.spec.url)
        self.host = parts.hostname or ""
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/").encode("ascii")
        """Put before every request target."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = self.port == (443 if self.tls else 80)
        self.host_line = f"Host: {host if standard else f'{host}:{self.port}'}\r\n".encode("ascii")
        self._ssl: ssl.SSLContext | None = None
        self._server_name = ""
        self.node_line = b""
        """The header lines that tell clients who served them."""
        self.authorization_line = b""
        self.describe()
        self.idle: deque[NodeConnection] = deque()
        """Oldest first; the newest is used next, so that the rest can grow old."""
        self.open: set[NodeConnection] = set()
        """All connections, idle or in use."""
        self.closed = False
        self.model_cards: dict[str, dict[str, object]] = {}
        """What the node says of its models in `GET /v1/models`."""

    def describe(self) -> None:
        """Write down what the node's spec says; again when it, or a file that it names, has changed."""
        node = self.node
        tls = node.spec.tls
        self._server_name = (tls.server_name if tls is not None else None) or self.host
        self._ssl = node_context(tls) if self.tls else None
        self.node_line = b"x-steelyard-node: %b\r\n" % node.name.encode("utf-8")
        if node.version is not None:
            self.node_line += b"x-steelyard-version: %b\r\n" % node.version.encode("utf-8")
        key = node.spec.api_key
        self.authorization_line = b"" if key is None else f"Authorization: Bearer {key}\r\n".encode()

    def take_idle(self, now: float) -> NodeConnection | None:
        """An idle connection that is young enough, or None."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            if connection.transport.is_closing():
                continue
            if now - connection.idle_since > KEEP_ALIVE_SECONDS:
                connection.transport.abort()
                continue
            connection.reused = True
            return connection
        return None

    async def connect(self) -> NodeConnection:
        """A new connection. Raises OSError (ConnectionRefusedError, ...)."""
        connection = NodeConnection(self)
        try:
            await self.loop.create_connection(
                lambda: cast(asyncio.Protocol, connection),
                self.host,
                self.port,
                ssl=self._ssl,
                server_hostname=self._server_name if self.tls else None,
            )
        except BaseException:
            # Cancelled just when it was made: uvloop closes it without a word to the protocol.
            if connection in self.open:
                self.open.discard(connection)
                connection.transport.abort()
            raise
        return connection

    def put_back(self, connection: NodeConnection, now: float) -> None:
        """The answer is whole: keep the connection for another request."""
        transport = connection.transport
        if self.closed or len(self.idle) >= IDLE_AT_MOST or transport.is_closing():
            transport.close()
            return
        if connection.paused or transport.get_write_buffer_size():
            # Its end would not be seen; or the next request would wait behind what the node has not taken of this one.
            transport.abort()
            return
        connection.idle_since = now
        self.idle.append(connection)

    def forget(self, connection: NodeConnection) -> None:
        """A connection is closed."""
        if connection.reused or connection.idle_since:
            with suppress(ValueError):
                self.idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        idle = self.idle
        while idle and now - idle[0].idle_since > KEEP_ALIVE_SECONDS:
            idle.popleft().transport.abort()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their answer is whole."""
        self.closed = True
        while self.idle:
            self.idle.pop().transport.abort()
