"""Small requests of the gateway's own to a node, over the same connections that carry the clients' requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from steelyard.proxy.http1 import ResponseHead
from steelyard.proxy.upstream import NodeConnection, Sink, Upstream

ANSWER_AT_MOST = 4 << 20
"""Bytes of an answer that are taken: metrics of a busy engine are some hundred KB."""


class FetchError(Exception):
    """No whole answer came. `cause` is what the system said when no connection could be made."""

    def __init__(self, message: str, cause: OSError | None = None) -> None:
        super().__init__(message)
        self.cause = cause

    @property
    def refused(self) -> bool:
        """Nobody listens there."""
        return isinstance(self.cause, ConnectionRefusedError)


@dataclass
class Answer:
    status: int
    body: bytes


class _Collector(Sink):
    """Collects one answer."""

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future
        self._status = 0
        self._body: list[bytes] = []
        self._size = 0
        self.raced = False
        self.connection: NodeConnection | None = None

    def node_interim(self, head: ResponseHead) -> None:
        pass

    def node_head(self, head: ResponseHead, now: float) -> None:
        self._status = head.status

    def node_body(self, data: bytes, last: bool, now: float) -> None:
        self._size += len(data)
        if self._size > ANSWER_AT_MOST:
            assert self.connection is not None
            self.connection.abort()
            self._fail(FetchError(f"the answer is larger than {ANSWER_AT_MOST} bytes"))
            return
        self._body.append(data)

    def node_switched(self, head: ResponseHead, behind: bytes, now: float) -> None:
        raise AssertionError("no protocol was offered")

    def node_flush(self) -> None:
        pass

    def node_end(self) -> None:
        if not self._future.done():
            self._future.set_result(Answer(self._status, b"".join(self._body)))

    def node_lost(self, reason: str, reset: bool) -> None:
        self.raced = reset
        self._fail(FetchError(reason))

    def node_pause(self) -> None:
        pass

    def node_resume(self) -> None:
        pass

    def _fail(self, error: FetchError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


async def fetch(
    upstream: Upstream, path: str, *, method: str = "GET", body: bytes = b"", timeout: float, now: float
) -> Answer:
    """The node's answer. Raises FetchError when none comes within `timeout` seconds.

    `now` is the time on the upstream's clock, for the choice of an idle connection.
    """
    try:
        async with asyncio.timeout(timeout):
            connection = upstream.take_idle(now)
            if connection is not None:
                try:
                    return await _exchange(upstream, connection, method, path, body)
                except _Race:
                    pass
            return await _exchange(upstream, await upstream.connect(), method, path, body)
    except TimeoutError:
        raise FetchError(f"no answer within {timeout:g} s") from None
    except _Race as race:
        raise FetchError(str(race)) from None
    except OSError as error:
        raise FetchError(f"cannot connect: {error.strerror or error}", error) from None


class _Race(Exception):
    """The connection was closed before a byte of the answer came."""


async def _exchange(upstream: Upstream, connection: NodeConnection, method: str, path: str, body: bytes) -> Answer:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    collector = _Collector(future)
    collector.connection = connection
    connection.take(collector, method, b"")
    content = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
    connection.transport.write(
        b"%b %b%b HTTP/1.1\r\n%b%b%bAccept: */*\r\nUser-Agent: steelyard\r\n\r\n%b"
        % (
            method.encode("ascii"),
            upstream.prefix,
            path.encode("ascii"),
            upstream.host_line,
            upstream.authorization_line,
            content,
            body,
        )
    )
    connection.request_sent = True
    try:
        return await future
    except FetchError as error:
        if collector.raced:
            raise _Race(str(error)) from None
        raise
    finally:
        if connection.sink is collector:
            connection.abort()
