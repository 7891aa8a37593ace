"""A small HTTP/1.1 client for measuring: callbacks, a keep-alive pool, and the moment of every step of an answer.

It shares no code with the gateway that it judges, except the parser of messages (llhttp), which neither wrote. It never
tries again: what a client would see is what is recorded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

from steelyard.sim.events import EventCounter

KEPT_BYTES = 65_536
"""Of a body; enough for an error's text or a list of nodes. Pictures are counted, not kept."""
CONNECTIONS = 4096
"""Open at once, at most. Each takes a descriptor here and one in the gateway; who must wait is seen to be late."""
IDLE_SECONDS = 20.0
"""How long a connection that nobody uses is kept. Less than servers wait (the gateway and nginx: 75 s), so that
no request is sent into a connection that is just being closed."""


class Request(NamedTuple):
    """What to ask. `stream`: the answer is expected as server-sent events with an end that they announce themselves."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    stream: bool = False

    def encode(self, authority: str) -> bytes:
        """The message as it goes over the wire."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {authority}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.body or self.method in ("POST", "PUT"):
            lines.append(f"content-length: {len(self.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + self.body


class Answer:
    """One answer, as far as it has come. Times are those of the client's clock; None is what has not happened."""

    __slots__ = (
        "_done",
        "body",
        "carrier",
        "complete",
        "end",
        "events",
        "failure",
        "first_byte",
        "headers",
        "sent",
        "size",
        "status",
    )

    def __init__(self, stream: bool, done: Callable[[Answer], None]) -> None:
        self._done: Callable[[Answer], None] | None = done
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; of repeated ones the last."""
        self.body = b""
        """Its first KEPT_BYTES."""
        self.size = 0
        self.events = EventCounter() if stream else None
        self.sent: float | None = None
        self.first_byte: float | None = None
        self.end: float | None = None
        self.complete = False
        self.failure = ""
        """Why it is not complete."""
        self.carrier: _Connection | None = None
        """The connection that it comes over."""

    def finish(self, now: float, failure: str = "") -> None:
        """Idempotent: the first end counts."""
        done, self._done = self._done, None
        if done is None:
            return
        self.carrier = None
        self.end = now
        self.failure = failure
        self.complete = not failure
        done(self)

    @property
    def open(self) -> bool:
        return self._done is not None


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: Answer | None = None
        self._keep = False
        self.idle_since = 0.0

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Bytes that nobody asked for: the connection cannot be trusted any more.
            self._client.unasked += len(data)
            self.close()
            return
        if answer.first_byte is None:
            answer.first_byte = self._client.now()
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"not HTTP: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        answer = self._answer
        if answer is not None:
            # Without a length and without chunks the end of the connection is the end of the body.
            until_closed = bool(answer.status) and not answer.headers.keys() & {"content-length", "transfer-encoding"}
            if until_closed and error is None:
                self._finish("")
            else:
                what = "reset" if error is not None else "closed"
                where = "within the answer" if answer.first_byte is not None else "before an answer"
                self._finish(f"connection {what} {where}")
        self._client.lost(self)

    # -- httptools -----------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._answer is not None
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._answer is not None
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer.status = status
        else:
            self._answer.headers.clear()
        self._keep = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        assert answer is not None
        if len(answer.body) < KEPT_BYTES:
            answer.body += data[: KEPT_BYTES - len(answer.body)]
        answer.size += len(data)
        if answer.events is not None:
            answer.events.feed(data, self._client.now())

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:
            self._finish("")

    # -- the client ----------------------------------------------------------------------------------------------

    def send(self, message: bytes, answer: Answer) -> None:
        """Send a request; the connection must be free."""
        assert self.transport is not None
        self._answer = answer
        answer.carrier = self
        self._parser = httptools.HttpResponseParser(self)
        answer.sent = self._client.now()
        self.transport.write(message)

    def give_up(self, answer: Answer) -> None:
        """Nobody waits for this answer any more: the connection ends, as when a client leaves."""
        if self._answer is answer:
            self._answer = None
            self.close()

    def fail(self, failure: str) -> None:
        """End the connection and the answer that comes over it."""
        answer = self._answer
        if answer is not None:
            self.give_up(answer)
            answer.finish(self._client.now(), failure)
        self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _finish(self, failure: str) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        reusable = not failure and self._keep and self.transport is not None and not self.transport.is_closing()
        if reusable:
            self._client.free(self)
        else:
            self.close()
        answer.finish(self._client.now(), failure)


class HttpClient:
    """Requests to one server, on as many connections as are needed at once and kept for the next."""

    def __init__(self, host: str, port: int, now: Callable[[], float], *, connections: int = CONNECTIONS) -> None:
        self.now = now
        self.unasked = 0
        """Bytes that came without a request; there must be none."""
        self.opened = 0
        self._address = (host, port)
        self._authority = f"{host}:{port}"
        self._limit = connections
        self._connections: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._waiting: deque[tuple[bytes, Answer]] = deque()
        self._opening: dict[asyncio.Task[None], Answer] = {}

    def send(self, request: Request, done: Callable[[Answer], None]) -> Answer:
        """Send a request now; `done` is called once, when its answer has ended in whatever way."""
        answer = Answer(request.stream, done)
        self._dispatch(request.encode(self._authority), answer)
        return answer

    async def fetch(self, request: Request, timeout: float) -> Answer:
        """The whole answer to a request. Raises OSError when it is not complete within `timeout` real seconds."""
        ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer = self.send(request, lambda answer: None if ended.done() else ended.set_result(answer))
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            self.abandon(answer, "no answer in time")
        if not answer.complete:
            raise OSError(f"{request.method} {request.path} at {self._authority}: {answer.failure}")
        return answer

    def abandon(self, answer: Answer, failure: str) -> None:
        """Leave before the answer is complete, as a client does whose patience has ended."""
        if not answer.open:
            return
        if answer.carrier is not None:
            answer.carrier.give_up(answer)
        answer.finish(self.now(), failure)

    async def close(self) -> None:
        """End all connections; answers that are still open fail."""
        for answer in [*(answer for _, answer in self._waiting), *self._opening.values()]:
            self.abandon(answer, "the client was closed")
        self._waiting.clear()
        opening = list(self._opening)
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in list(self._connections):
            connection.fail("the client was closed")
        self._idle.clear()
        while self._connections:
            await asyncio.sleep(0.005)

    # -- connections ---------------------------------------------------------------------------------------------

    def _dispatch(self, message: bytes, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if loop.time() - connection.idle_since > IDLE_SECONDS:
                connection.close()
                continue
            connection.send(message, answer)
            return
        if len(self._connections) + len(self._opening) >= self._limit:
            self._waiting.append((message, answer))
            return
        task = loop.create_task(self._open(message, answer))
        self._opening[task] = answer
        task.add_done_callback(lambda task: self._opening.pop(task, None))

    async def _open(self, message: bytes, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self), *self._address)
        except OSError as error:
            answer.finish(self.now(), f"cannot connect: {error.strerror or error}")
            return
        self.opened += 1
        self._connections.add(connection)
        if connection.transport is None:
            answer.finish(self.now(), "connection closed before a request")
            self._connections.discard(connection)
        elif answer.open:
            connection.send(message, answer)
        else:
            self.free(connection)

    def free(self, connection: _Connection) -> None:
        """A connection is ready for the next request."""
        while self._waiting:
            message, answer = self._waiting.popleft()
            if answer.open:
                connection.send(message, answer)
                return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        while self._waiting and len(self._connections) + len(self._opening) < self._limit:
            message, answer = self._waiting.popleft()
            if answer.open:
                self._dispatch(message, answer)
