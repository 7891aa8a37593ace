"""One HTTP request and its answer, and the faults that concern bytes: holding an answer back and cutting it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_LAST_CHUNK = b"0\r\n\r\n"


class BadBody(ValueError):
    """The body is not the JSON object that the path needs."""


class Request:
    """One request, whole."""

    __slots__ = ("body", "headers", "http_1_0", "keep_alive", "method", "path", "query")

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.query: dict[str, str] = {}
        self.headers: dict[str, str] = {}  # names in lower case; repeated ones joined by ", "
        self.body = b""
        self.http_1_0 = False
        self.keep_alive = True

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises BadBody."""
        try:
            value = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadBody(f"the body is not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise BadBody("the body must be a JSON object")
        return value


class Connection(Protocol):
    """What an exchange needs from its connection."""

    def send(self, data: bytes) -> None: ...

    def drop(self, how: str) -> None:
        """End the connection: ``fin`` after what was written, ``rst`` with a reset."""

    def exchange_sent(self, keep_alive: bool) -> None:
        """The answer is complete."""


class Exchange:
    """One request and its answer. After the end every call is ignored, so late jobs need no checks."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_events",
        "_held",
        "_held_end",
        "closed",
        "cut_after",
        "cut_how",
        "head",
        "hold_after",
        "on_closed",
        "on_first_byte",
        "request",
        "status",
    )

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self.request = request
        self.head = b""  # header lines that every answer carries
        self.status: int | None = None
        self.closed = False
        self.on_closed: Callable[[str], None] | None = None  # "sent", "gone" or "cut"
        self.on_first_byte: Callable[[], None] | None = None
        self.hold_after: int | None = None  # events after which nothing more is sent; 0: not even the head
        self.cut_after: int | None = None
        self.cut_how = "fin"
        self._held: list[bytes] | None = None
        self._held_end = False
        self._events = 0
        self._chunked = True

    def answer(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """The whole answer at once."""
        if self.closed or self.status is not None:
            return
        head = self._head(status, content_type, headers) + b"content-length: %d\r\n\r\n" % len(body)
        if self.request.method == "HEAD" or status in (204, 304):
            body = b""
        if self.cut_after is not None or self.hold_after is not None:
            self._answer_with_fault(head, body)
        else:
            self._send(head + body)
        self._finish()

    def start(
        self, status: int, content_type: str = "text/event-stream", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Send the head of an answer whose length is not known yet."""
        if self.closed or self.status is not None:
            return
        head = self._head(status, content_type, headers)
        self._chunked = not self.request.http_1_0
        if self._chunked:
            head += b"transfer-encoding: chunked\r\n\r\n"
        else:
            self.request.keep_alive = False
            head += b"\r\n"
        if self.cut_after == 0:
            self.cut()
            return
        if self.hold_after == 0:
            self._held = []
        self._send(head)

    def write(self, *events: bytes) -> None:
        """Send events of a started answer, each as one chunk."""
        if self.closed:
            return
        if self.cut_after is not None:
            events = events[: self.cut_after - self._events]
        free = len(events)
        if self.hold_after is not None and self._held is None:
            free = max(0, self.hold_after - self._events)
        self._events += len(events)
        # All in one piece: the kernel delivers it before a reset that follows, which many small ones may not survive.
        if events[:free]:
            self._send(self._framed(events[:free]))
        if events[free:]:
            self._held = []
            self._send(self._framed(events[free:]))
        if self.cut_after is not None and self._events >= self.cut_after:
            self.cut()

    def end(self) -> None:
        """The started answer is complete."""
        if self.closed:
            return
        if self._chunked:
            self._send(_LAST_CHUNK)
        self._finish()

    def cut(self, how: str | None = None) -> None:
        """End the connection now, in the middle of the answer: ``fin`` flushes, ``rst`` resets."""
        if self.closed:
            return
        self._close("cut")
        self._connection.drop(how or self.cut_how)

    def release(self) -> None:
        """The hang is over: send what was held back."""
        self.hold_after = None
        held, self._held = self._held, None
        if held and not self.closed:
            self._send(b"".join(held))
            if self._held_end:
                self._finish()

    def gone(self, how: str = "gone") -> None:
        """The connection was lost."""
        if not self.closed:
            self._close(how)

    def _framed(self, events: tuple[bytes, ...]) -> bytes:
        if self._chunked:
            return b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events])
        return b"".join(events)

    def _answer_with_fault(self, head: bytes, body: bytes) -> None:
        half = len(body) // 2
        if self.cut_after is not None:
            if self.cut_after > 0:
                self._send(head + body[:half])
            self.cut()
        elif self.hold_after == 0:
            self._held = [head, body]
        else:
            self._send(head + body[:half])
            self._held = [body[half:]]

    def _head(self, status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> bytes:
        self.status = status
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"")), self.head]
        if content_type:
            lines.append(b"content-type: %b\r\n" % content_type.encode())
        for name, value in headers:
            lines.append(f"{name}: {value}\r\n".encode("latin-1"))
        if not self.request.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self.request.http_1_0:
            lines.append(b"connection: keep-alive\r\n")
        return b"".join(lines)

    def _send(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
            return
        if self.on_first_byte is not None:
            self.on_first_byte()
            self.on_first_byte = None
        self._connection.send(data)

    def _finish(self) -> None:
        if self._held is not None:
            self._held_end = True
        elif not self.closed:
            self._close("sent")
            self._connection.exchange_sent(self.request.keep_alive)

    def _close(self, how: str) -> None:
        self.closed = True
        self._held = None
        callback, self.on_closed = self.on_closed, None
        if callback is not None:
            callback(how)
