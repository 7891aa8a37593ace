"""How an answer gets to the client: which head, which framing, and what is read in passing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from steelyard.dialects import Operation, Usage
from steelyard.proxy.client import Client
from steelyard.proxy.http1 import LAST_CHUNK, REASONS, RequestHead, ResponseHead, bodiless, chunk, status_line, without
from steelyard.proxy.sse import StreamScanner

if TYPE_CHECKING:
    from steelyard.proxy.alias import Renaming

LENGTH: Final = frozenset({b"content-length"})
USAGE_BODY: Final = 1 << 20
"""A plain answer up to this size, in bytes, is looked at for its token usage."""


class Relay:
    """One answer on its way. The bytes of the body are the node's; only the framing is chosen for the client."""

    __slots__ = (
        "_chunked",
        "_client",
        "_kept",
        "_operation",
        "_out",
        "_renaming",
        "_until_close",
        "bytes_out",
        "closes",
        "scanner",
        "status",
    )

    def __init__(
        self,
        client: Client,
        request: RequestHead,
        head: ResponseHead,
        operation: Operation,
        own_lines: bytes,
        closing: bool,
        renaming: Renaming | None,
    ) -> None:
        """Puts the head in line. `own_lines` are the gateway's header lines; `closing`: no other request is wanted."""
        self._client = client
        self._operation = operation
        self._renaming = renaming
        self.status = status = head.status
        self.bytes_out = 0
        self._kept: list[bytes] | None = None
        """Pieces of a plain answer, kept for its usage."""
        self.scanner: StreamScanner | None = None
        relay = head.relay
        content_type = head.read.get(b"content-type")
        if content_type is not None and status == 200 and b"content-encoding" not in head.read:
            if content_type.startswith(b"text/event-stream"):
                self.scanner = StreamScanner(operation.dialect)
            elif operation.tells_usage and content_type.startswith(b"application/json"):
                self._kept = []
        length_known = head.content_length is not None
        if renaming is not None:
            if content_type is None or b"content-encoding" in head.read or not renaming.begin(content_type):
                self._renaming = None
            elif length_known:
                relay = without(relay, LENGTH)
                length_known = False
        if status == 204 and length_known:
            # RFC 9110, 8.6: it has none.
            relay = without(relay, LENGTH)
        self._chunked = self._until_close = False
        framing = b""
        if not length_known and request.method != "HEAD" and not bodiless(status):
            if request.minor:
                self._chunked = True
                framing = b"Transfer-Encoding: chunked\r\n"
            else:
                self._until_close = closing = True
        self.closes = closing or not request.keep_alive
        if self.closes:
            framing += b"Connection: close\r\n"
        elif not request.minor:
            framing += b"Connection: keep-alive\r\n"
        self._out = [status_line(status, head.reason), *relay, own_lines, framing, b"\r\n"]
        """What is not written yet: everything that one read from the node brings goes out in one write."""

    def body(self, data: bytes, now: float, last: bool) -> None:
        """A piece of the body. It goes out at once, except behind a head that does not, or (`last`) before the end."""
        scanner = self.scanner
        if scanner is not None:
            scanner.feed(data, now)
        elif self._kept is not None:
            self._kept.append(data)
            if self.bytes_out > USAGE_BODY:
                self._kept = None
        renaming = self._renaming
        if renaming is not None:
            data = renaming.answer(data)
            if not data:
                return
        self.bytes_out += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if last or self._out:
            self._out.append(data)
        else:
            self._client.write(data)

    def flush(self) -> None:
        """Write what is in line."""
        out = self._out
        if out:
            self._client.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def end(self, now: float) -> None:
        """The answer is whole."""
        if self.scanner is not None:
            self.scanner.end(now)
        if self._renaming is not None:
            data = self._renaming.end()
            if data:
                self.bytes_out += len(data)
                self._out.append(chunk(data) if self._chunked else data)
        out = self._out
        if self._chunked:
            out.append(LAST_CHUNK)
        if out:
            self._client.write(b"".join(out))
            out.clear()

    def fail(self, code: str, message: str) -> None:
        """The rest of the answer will not come: say so in the dialect where that is possible, and end abnormally.

        A chunked answer ends without its last chunk and a counted one too early. One that only the closing
        delimits (HTTP/1.0) is reset, or it would look whole.
        """
        scanner = self.scanner
        if self._chunked and scanner is not None and not scanner.done:
            event = self._operation.stream_error(code, message)
            self._out.append(chunk(event if scanner.between_events else b"\n\n" + event))
        self.flush()
        self._client.close_abnormally(flush=not self._until_close)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the answer that are kept until its usage is read."""
        return self.bytes_out if self._kept is not None else 0

    def usage(self) -> Usage | None:
        """The token usage that the answer tells, if it does."""
        if self.scanner is not None:
            return self.scanner.usage
        if self._kept:
            return self._operation.usage(self._kept[0] if len(self._kept) == 1 else b"".join(self._kept))
        return None


def plain_answer(
    status: int, body: bytes, content_type: bytes, own_lines: bytes, request: RequestHead | None, closing: bool
) -> bytes:
    """The bytes of an answer that the gateway gives itself. Without a `request` (its head was broken) it closes."""
    connection = b""
    if request is None or closing or not request.keep_alive:
        connection = b"Connection: close\r\n"
    elif not request.minor:
        connection = b"Connection: keep-alive\r\n"
    head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        status_line(status, REASONS[status]),
        content_type,
        len(body),
        own_lines,
        connection,
    )
    return head if request is not None and request.method == "HEAD" else head + body
