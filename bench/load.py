"""The load generator: raw HTTP/1.1 client connections and the loads that are made of them.

It understands just enough HTTP to know where an answer ends. Every load lives on one event loop, is started
with `start`, keeps plain counters while it runs, and leaves no connection open after `stop`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from bench import payloads
from bench.processes import LOOPBACK

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_UNTIL_CLOSED = -1
# After a connection broke: long enough not to spin against a proxy that refuses, short beside a measurement.
_RECONNECT_SECONDS = 0.02

BodySink = Callable[["Connection", bytes], None]
DoneSink = Callable[["Connection", int], None]


class Connection(asyncio.Protocol):
    """One client connection with at most one request under way.

    `on_done` is called with the status of each answer when its last byte is there, and with 0 when the
    connection broke first. `on_body` gets the body as it arrives, with its framing.
    """

    def __init__(self, on_done: DoneSink, on_body: BodySink | None = None) -> None:
        self._on_done = on_done
        self._on_body = on_body
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._tail = b""
        self._status = 0
        self._missing = 0
        self._chunked = False
        self._busy = False
        self.sent_at = 0.0
        self.last_body_at = 0.0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Write a request; the connection must be open and without one under way."""
        assert self._transport is not None
        assert not self._busy
        self._busy = True
        self._status = 0
        self._head = b""
        self.last_body_at = 0.0
        self.sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Close at once and report nothing."""
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return
        if not self._status:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._begin_body(self._head[:end])
        if data and self._on_body is not None:
            self._on_body(self, data)
        if self._chunked:
            # The back ends of the bench send neither trailers nor these five bytes inside an event.
            self._tail = (self._tail + data[-5:])[-5:]
            if self._tail == payloads.CHUNKED_END:
                self._finish(self._status)
        elif self._missing != _UNTIL_CLOSED:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(self._status)

    def _begin_body(self, head: bytes) -> None:
        self._status = int(head[9:12])
        self._chunked = _CHUNKED.search(head) is not None
        self._tail = b""
        length = _LENGTH.search(head)
        self._missing = int(length[1]) if length else _UNTIL_CLOSED

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy:
            complete = self._status and not self._chunked and self._missing == _UNTIL_CLOSED
            self._finish(self._status if complete else 0)

    def _finish(self, status: int) -> None:
        self._busy = False
        self._on_done(self, status)


class ClosedLoop:
    """A fixed number of connections, each sending its next request when the last one is answered.

    Counters: `answers`, `errors` (not 200, or broken), `events` and `reads` of streams.
    """

    def __init__(self, port: int, request: bytes, connections: int) -> None:
        self._port = port
        self._request = request
        self._wanted = connections
        self._connections: set[Connection] = set()
        self._reconnects: set[asyncio.Task[None]] = set()
        self._running = False
        self.answers = self.errors = self.events = self.reads = 0

    async def start(self) -> None:
        """Open all connections and send the first requests."""
        self._running = True
        await asyncio.gather(*(self._connect() for _ in range(self._wanted)))

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._answered, self._body), LOOPBACK, self._port
            )
        except OSError:
            self.errors += 1
            self._reconnect_later()
            return
        if not self._running:
            connection.close()
            return
        self._connections.add(connection)
        connection.send(self._request)

    def _reconnect_later(self) -> None:
        async def later() -> None:
            await asyncio.sleep(_RECONNECT_SECONDS)
            await self._connect()

        if self._running:
            task = asyncio.get_running_loop().create_task(later())
            self._reconnects.add(task)
            task.add_done_callback(self._reconnects.discard)

    def _body(self, _connection: Connection, data: bytes) -> None:
        # Proxies pass an event on whole, or several at once; an event cut in the middle of its mark would
        # be missed, and `events` would then show fewer than were sent, never more.
        self.reads += 1
        self.events += data.count(payloads.EVENT_MARK)

    def _answered(self, connection: Connection, status: int) -> None:
        if not self._running:
            return
        self.answers += 1
        if status != 200:
            self.errors += 1
        if connection.open:
            connection.send(self._request)
        else:
            self._connections.discard(connection)
            self._reconnect_later()

    async def stop(self) -> None:
        """Close everything, also in the middle of answers."""
        self._running = False
        for task in list(self._reconnects):
            task.cancel()
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)


class OpenLoop:
    """Requests at a fixed rate, whatever the answers do: a slow answer does not hold back the next request.

    `latencies` has the seconds from the write of a request to the last byte of its answer; `lateness` how
    long after its due time a request was written, which is the load generator's own doing.
    """

    def __init__(self, port: int, request: bytes, rate: float, connections: int = 64) -> None:
        self._port = port
        self._request = request
        self._gap = 1 / rate
        self._connections = connections
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._recording = False
        self.latencies: list[float] = []
        self.lateness: list[float] = []
        self.errors = 0

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self._answered), LOOPBACK, self._port)
        self._all.add(connection)
        return connection

    async def run(self, seconds: float, warm_up: float = 0.5) -> None:
        """Send for `warm_up` seconds without and then `seconds` with taking figures, then close everything."""
        opened = await asyncio.gather(*(self._connect() for _ in range(self._connections)))
        self._idle.extend(opened)
        begin = due = time.perf_counter()
        end = begin + warm_up + seconds
        try:
            while due < end:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                now = time.perf_counter()
                while due <= now and due < end:
                    self._recording = due >= begin + warm_up
                    await self._send(now - due)
                    due += self._gap
            # What is still under way after this long counts as an error below.
            await asyncio.sleep(0.25)
            self.errors += len(self._all) - len(self._idle)
        finally:
            self._recording = False
            for connection in self._all:
                connection.close()
            await asyncio.sleep(0)

    async def _send(self, lateness: float) -> None:
        connection = self._idle.popleft() if self._idle else await self._connect()
        if not connection.open:
            self._all.discard(connection)
            connection = await self._connect()
        if self._recording:
            self.lateness.append(lateness)
        connection.send(self._request)

    def _answered(self, connection: Connection, status: int) -> None:
        if self._recording:
            self.latencies.append(time.perf_counter() - connection.sent_at)
        if status != 200:
            self.errors += 1
        if connection.open:
            self._idle.append(connection)
        else:
            self._all.discard(connection)


class IdleStreams:
    """Streams that are opened, get their first event, and are then held. `started` counts those that did."""

    # So many handshakes at once: below the accept backlog of every proxy here.
    AT_ONCE = 100
    # A proxy slower than this many streams a second, after that many seconds, is given up.
    LEAST_RATE = 400
    PATIENCE_SECONDS = 8.0
    # Loopback addresses in turn, so that the ports of one client address are not what runs short.
    ADDRESSES = tuple(f"127.0.0.{last}" for last in range(2, 10))

    def __init__(self, port: int, request: bytes, count: int) -> None:
        self._port = port
        self._request = request
        self._count = count
        self._connections: list[Connection] = []
        self._waiting: dict[Connection, asyncio.Future[None]] = {}
        self.started = self.errors = 0

    def _body(self, connection: Connection, data: bytes) -> None:
        waiting = self._waiting.pop(connection, None)
        if waiting is not None and not waiting.done() and payloads.EVENT_MARK in data:
            self.started += 1
            waiting.set_result(None)

    def _ended(self, connection: Connection, _status: int) -> None:
        # A held stream that ends is an error, whatever its status.
        self.errors += 1
        waiting = self._waiting.pop(connection, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _open(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        source = socket.socket()
        source.setblocking(False)
        # The port is chosen at connect, when both ends are known: IP_BIND_ADDRESS_NO_PORT, Linux 4.2.
        source.setsockopt(socket.IPPROTO_IP, 24, 1)
        source.bind((self.ADDRESSES[index % len(self.ADDRESSES)], 0))
        try:
            await loop.sock_connect(source, (LOOPBACK, self._port))
        except OSError:
            source.close()
            self.errors += 1
            return
        _, connection = await loop.create_connection(lambda: Connection(self._ended, self._body), sock=source)
        self._connections.append(connection)
        self._waiting[connection] = loop.create_future()
        waiting = self._waiting[connection]
        connection.send(self._request)
        await waiting

    async def start(self) -> None:
        """Open them all and wait for the first event of each; raises `TimeoutError` where that takes too long."""
        timeout = self.PATIENCE_SECONDS + self._count / self.LEAST_RATE
        indices = iter(range(self._count))

        async def worker() -> None:
            for index in indices:
                await self._open(index)

        async with asyncio.timeout(timeout):
            await asyncio.gather(*(worker() for _ in range(self.AT_ONCE)))

    async def stop(self) -> None:
        """Close them all."""
        for waiting in self._waiting.values():
            waiting.cancel()
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0)


class GapMeter(ClosedLoop):
    """A few long streams whose events come at a fixed pace; `gaps` has the seconds between two reads of one."""

    def __init__(self, port: int, request: bytes, streams: int) -> None:
        super().__init__(port, request, streams)
        self.gaps: list[float] = []

    def _body(self, connection: Connection, data: bytes) -> None:
        super()._body(connection, data)
        now = time.perf_counter()
        if connection.last_body_at:
            self.gaps.append(now - connection.last_body_at)
        connection.last_body_at = now


def wait_until_answered(
    port: int, request: bytes, check: Callable[[], None] = lambda: None, seconds: float = 20.0
) -> bool:
    """Whether a request to `port` is answered with 200 within `seconds`; `check` may raise at each try."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        check()
        try:
            with socket.create_connection((LOOPBACK, port), timeout=2.0) as client:
                client.sendall(request)
                if client.recv(4096)[9:12] == b"200":
                    return True
        except OSError:
            pass
        time.sleep(0.05)
    return False
