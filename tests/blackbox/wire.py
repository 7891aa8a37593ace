"""Bytes on sockets: both ends of the gateway as the tests play them, with nothing of the gateway's own code.

The reading here is strict on purpose (RFC 9112): what it does not understand is an error of the gateway.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

PATIENCE = 20.0
"""Seconds that a test waits for what must come at once. Generous: the machine may be busy."""

Headers = list[tuple[str, bytes]]


class WireError(AssertionError):
    """Bytes that no HTTP/1.1 peer may send."""


class Message:
    """One message as it arrives: head, body, and how its end was marked."""

    def __init__(self, *, answer: bool, method: str = "GET") -> None:
        self.answer = answer
        self.method = method
        self.raw_head = b""
        self.start = b""
        self.headers: Headers = []
        self.body = bytearray()
        self.chunks: list[bytes] = []
        """What came in each chunk of the chunked coding."""
        self.trailers: Headers = []
        self.framing = ""
        """none, length, chunked or close; empty until the head is there."""
        self.complete = False
        self.interim: list[Message] = []
        """Of an answer: the 1xx heads before it."""
        self._left = 0
        self._state = "head"

    # -- what it says

    def get(self, name: str) -> bytes | None:
        """The value of a header that stands there once; None when it does not. Fails when it stands there twice."""
        values = self.all(name)
        assert len(values) < 2, f"{name} stands {len(values)} times in {self.raw_head!r}"
        return values[0] if values else None

    def all(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def status(self) -> int:
        return int(self.start.split(b" ", 2)[1])

    @property
    def target(self) -> str:
        return self.start.split(b" ")[1].decode()

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def keep_alive(self) -> bool:
        connection = (self.get("connection") or b"").lower()
        if self.start.startswith(b"HTTP/1.0") or self.start.endswith(b"HTTP/1.0"):
            return connection == b"keep-alive"
        return connection != b"close"

    # -- reading

    def feed(self, buffer: bytearray) -> None:
        """Take what belongs to this message from the front of `buffer`."""
        while buffer and not self.complete:
            if self._state == "head":
                if not self._take_head(buffer):
                    return
            elif self._state == "close":
                self.body += buffer
                buffer.clear()
            elif self._state == "length" or self._state == "chunk":
                piece = bytes(buffer[: self._left])
                del buffer[: len(piece)]
                self.body += piece
                self._left -= len(piece)
                if self._state == "chunk":
                    self.chunks[-1] += piece
                    if not self._left:
                        self._state = "chunk end"
                elif not self._left:
                    self.complete = True
            elif not self._take_chunk_line(buffer):
                return

    def end_of_input(self) -> None:
        """The connection was closed in order: for some answers that is their end."""
        if self._state == "close":
            self.complete = True

    def _take_head(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.raw_head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self.start, *lines = self.raw_head[:-4].split(b"\r\n")
        if not self.answer:
            self.method = self.start.partition(b" ")[0].decode("ascii")
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip() or b"\n" in line or b"\r" in line:
                raise WireError(f"no header line: {line!r}")
            self.headers.append((name.decode("ascii"), value.strip()))
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        coding, length = self.get("transfer-encoding"), self.get("content-length")
        if coding is not None and length is not None:
            raise WireError("both Transfer-Encoding and Content-Length")
        if self.answer:
            if not self.start.startswith(b"HTTP/1.1 "):
                raise WireError(f"status line {self.start!r}")
            if self.status < 200 or self.status == 204:
                if coding or length:
                    raise WireError(f"{self.status} has a length or coding (RFC 9110, 8.6; RFC 9112, 6.1)")
                self._state = "none"
            elif self.status == 304 or self.method == "HEAD":
                self._state = "none"
        if self._state != "none":
            if coding is not None:
                if coding.lower() != b"chunked":
                    raise WireError(f"coding {coding!r}")
                self._state = "chunk line"
            elif length is not None:
                if not length.isdigit():
                    raise WireError(f"length {length!r}")
                self._left = int(length)
                self._state = "length" if self._left else "none"
            else:
                self._state = "close" if self.answer else "none"
        self.framing = "chunked" if self._state == "chunk line" else self._state
        if length == b"0" and self.framing == "none":
            self.framing = "length"
        self.complete = self._state == "none"

    def _take_chunk_line(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\r\n")
        if end < 0:
            return False
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        if self._state == "chunk end":
            if line:
                raise WireError(f"chunk is followed by {line!r}")
            self._state = "chunk line"
        elif self._state == "trailers":
            if not line:
                self.complete = True
            else:
                name, _, value = line.partition(b":")
                self.trailers.append((name.decode("ascii"), value.strip()))
        else:
            size = int(line.partition(b";")[0], 16)
            if size:
                self._left = size
                self._state = "chunk"
                self.chunks.append(b"")
            else:
                self._state = "trailers"
        return True


class Peer(asyncio.Protocol):
    """One connection of a test: what came, and how it ended."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.buffer = bytearray()
        """What came and was not taken yet."""
        self.received = 0
        self.sent = 0
        """Bytes given to the transport."""
        self.eof = False
        """The other side has ended its stream in order."""
        self.reset = False
        """The connection broke."""
        self.closed = False
        self.writable = True
        self.half_closes = False
        """Whether this side may still send when the other one has ended."""
        self._waiting: list[asyncio.Future[None]] = []

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.buffer += data
        self._wake()

    def eof_received(self) -> bool:
        self.eof = True
        self._wake()
        return self.half_closes

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if exc is not None:
            self.reset = True
        self._wake()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- for tests

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until something that bytes, or the end of the connection, can bring is true."""
        if condition():
            return
        async with asyncio.timeout(patience):
            while not condition():
                future = asyncio.get_running_loop().create_future()
                self._waiting.append(future)
                await future

    def send(self, data: bytes) -> None:
        """Send; what is sent to somebody who has gone is lost, as on every connection."""
        if self.closed:
            return
        self.sent += len(data)
        self.transport.write(data)

    async def send_gently(self, data: bytes) -> None:
        """Send, then wait while the other side does not take it."""
        self.send(data)
        await self.until(lambda: self.writable or self.closed, 50)
        if self.closed:
            raise ConnectionResetError("the connection is closed")

    @property
    def ended(self) -> bool:
        return self.eof or self.closed

    async def gone(self, patience: float = PATIENCE) -> None:
        """Wait until the other side has ended the connection, in order or not."""
        await self.until(lambda: self.ended, patience)

    def fin(self) -> None:
        """End the connection in order."""
        self.transport.close()

    def rst(self) -> None:
        """Break the connection: what the other side has not read may be lost for it."""
        if self.closed or self.transport.is_closing():
            self.transport.abort()
            return
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading, so that the buffers of the system fill."""
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()


class Client(Peer):
    """A client of the gateway that says exactly what the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    async def head(self, method: str = "GET", patience: float = PATIENCE) -> Message:
        """The head of the next answer; its body comes with `body` and `rest`."""
        interim: list[Message] = []
        while True:
            message = Message(answer=True, method=method)

            def there(message: Message = message) -> bool:
                message.feed(self.buffer)
                return bool(message.framing) or self.ended

            await self.until(there, patience)
            if not message.framing:
                raise ConnectionError(f"no answer (reset: {self.reset}), only {bytes(self.buffer)!r}")
            if message.status >= 200 or message.status == 101:
                message.interim = interim
                self.answers += 1
                return message
            interim.append(message)

    async def body(self, message: Message, at_least: int, patience: float = PATIENCE) -> bytes:
        """Wait for so many bytes of the body, or its end."""

        def there() -> bool:
            message.feed(self.buffer)
            return len(message.body) >= at_least or message.complete or self.ended

        await self.until(there, patience)
        return bytes(message.body)

    async def rest(self, message: Message, patience: float = PATIENCE) -> Message:
        """Wait for the end of the answer, or of the connection; `message.complete` says which it was."""

        def there() -> bool:
            message.feed(self.buffer)
            return message.complete or self.ended

        await self.until(there, patience)
        if not message.complete and message.framing == "close":
            # In order or by a reset? Only the closing tells.
            await self.until(lambda: self.closed, patience)
            message.feed(self.buffer)
            if not self.reset:
                message.end_of_input()
        return message

    async def answer(self, method: str = "GET", patience: float = PATIENCE) -> Message:
        return await self.rest(await self.head(method, patience), patience)

    async def ask(self, data: bytes, method: str | None = None, patience: float = PATIENCE) -> Message:
        """Send a request and read its answer."""
        self.send(data)
        return await self.answer(method or data.partition(b" ")[0].decode(), patience)


def request(
    method: str = "GET",
    target: str = "/",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    body: bytes | None = None,
    version: str = "1.1",
    chunks: list[bytes] | None = None,
) -> bytes:
    """The bytes of a request; `chunks` make it chunked."""
    pairs = list(headers.items() if isinstance(headers, dict) else headers or [])
    names = {name.lower() for name, _ in pairs}
    lines = [f"{method} {target} HTTP/{version}"]
    if "host" not in names:
        lines.append("Host: gateway.test")
    lines += [f"{name}: {value}" for name, value in pairs]
    if chunks is not None:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in chunks) + b"0\r\n\r\n"
    elif body is not None and "content-length" not in names:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")
