"""The bytes of a client's connection as events."""

from __future__ import annotations

from typing import Final

import httptools

from steelyard.proxy.http1.headers import RELAY, TAKE, HeaderTable, MessageError, drop_listed, only_chunked


class End:
    """The message is complete."""

    __slots__ = ()


END: Final = End()


class RequestHead:
    """The head of a request. `relay` are the ready parts of the header lines that go on."""

    __slots__ = (
        "chunked",
        "coded",
        "content_length",
        "has_body",
        "keep_alive",
        "method",
        "minor",
        "path",
        "read",
        "relay",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        path: str,
        minor: int,
        keep_alive: bool,
        relay: list[bytes],
        read: dict[bytes, bytes],
        content_length: int | None,
        chunked: bool,
    ) -> None:
        self.method = method
        self.target = target
        """Path and query, in origin form, as the client wrote it."""
        self.path = path
        """Without the query."""
        self.minor = minor
        """1 for HTTP/1.1, 0 for HTTP/1.0."""
        self.keep_alive = keep_alive
        self.relay = relay
        self.read = read
        """Lower-case name -> value of the headers that somebody here reads; several of one name are joined."""
        self.content_length = content_length
        self.chunked = chunked
        self.has_body = chunked or bool(content_length)
        self.coded = b"content-encoding" in read and read[b"content-encoding"].lower() != b"identity"
        """The body is compressed."""


class RequestReader:
    """Turns the bytes of a client connection into events: RequestHead, bytes (of its body), END, and so on."""

    __slots__ = (
        "_classify",
        "_fed",
        "_in_head",
        "_known",
        "_limit",
        "_muted",
        "_parser",
        "_read",
        "_relay",
        "_skipped",
        "_target",
        "error",
        "events",
        "on_body",
    )

    def __init__(self, table: HeaderTable, header_limit: int) -> None:
        self.error: MessageError | None = None
        """What was wrong after the last event; nothing can be read after that."""
        self.events: list[RequestHead | bytes | End] = []
        # A C method as the parser's callback: no Python frame for a piece of body.
        self.on_body = self.events.append
        self._relay: list[bytes] = []
        self._read: dict[bytes, bytes] = {}
        self._target = b""
        self._in_head = True
        self._fed = 0
        self._skipped = b""
        """The framing line of a body that the parser, taking the upgrade for granted, has passed over."""
        self._muted = False
        self.use(table, header_limit)
        self._parser = httptools.HttpRequestParser(self)

    @property
    def between_messages(self) -> bool:
        """True when nothing of a next request has been seen."""
        return self._in_head and not (self._fed or self._target or self._relay or self._read)

    def use(self, table: HeaderTable, header_limit: int) -> None:
        """Take over another table and limit (after a reload), from the next header on."""
        self._known = table.known
        self._classify = table.classify
        self._limit = header_limit

    def feed(self, data: bytes) -> list[RequestHead | bytes | End]:
        """The events in `data`, up to an `error`. The list is used again by the next call."""
        events = self.events
        events.clear()
        if self.error is not None:
            return events
        self._fed += len(data)
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # An upgrade that is not taken is ignored (RFC 9110, 7.8): the body follows, or the next request.
                rest = memoryview(rest)[upgrade.args[0] :]
                if self._skipped:
                    self._take_up_body()
            except httptools.HttpParserCallbackError as error:
                if not isinstance(error.__context__, MessageError):
                    raise
                # Without the frames that it came through: they would hold the request that is being served.
                self.error = error.__context__.with_traceback(None)
                break
            except httptools.HttpParserError as error:
                self.error = MessageError("malformed_request", f"not a valid HTTP/1.1 request: {error}")
                break
        if events:
            self._fed = 0
        elif self._fed > self._limit and self.error is None:
            # No end of a head, of a chunk's extension, or of the trailer.
            self.error = self._too_large()
        return events

    def _take_up_body(self) -> None:
        """The parser takes what follows for another protocol. One that was given a head with the same framing, but
        without the upgrade, takes it for the body that it is."""
        self._parser = httptools.HttpRequestParser(self)
        self._muted = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % self._skipped)
        self._muted = False
        self._skipped = b""

    def _too_large(self) -> MessageError:
        return MessageError("headers_too_large", f"request line and headers are larger than {self._limit} bytes")

    # callbacks of the parser

    def on_url(self, url: bytes) -> None:
        if self._muted:
            return
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            # A trailer field: none of them may act as a header (RFC 9110, 6.5.1); they are dropped. (Or muted.)
            return
        lower, disposition = self._known.get(name) or self._classify(name)
        if disposition != TAKE:
            self._relay += (name, b": ", value, b"\r\n")
            if disposition == RELAY:
                return
        read = self._read
        if lower in read:
            if lower == b"host":
                raise MessageError("malformed_request", "there is more than one Host header")
            separator = b"; " if lower == b"cookie" else b", "
            read[lower] = read[lower] + separator + value
        else:
            read[lower] = value

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        parser = self._parser
        target, relay, read = self._target, self._relay, self._read
        if self._fed > self._limit:
            size = len(target) + sum(map(len, relay)) + sum(len(n) + len(v) for n, v in read.items())
            if size > self._limit:
                raise self._too_large()
        self._in_head = False
        self._target, self._relay, self._read = b"", [], {}
        method = parser.get_method().decode("ascii")
        if target[:1] != b"/":
            target = origin_form(method, target, read)
        path = target.partition(b"?")[0].decode("latin-1")
        keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        if version != "1.1" and version != "1.0":
            raise MessageError("malformed_request", f"HTTP/{version} is not spoken here, HTTP/1.1 is")
        if b"connection" in read:
            drop_listed(relay, read[b"connection"])
        length = int(read[b"content-length"]) if b"content-length" in read else None
        chunked = b"transfer-encoding" in read and only_chunked(read[b"transfer-encoding"], "malformed_request")
        if version == "1.0":
            # RFC 9112, 6.1: a message of HTTP/1.0 with a transfer coding is faulty, the connection ends with it.
            keep_alive = keep_alive and not chunked
        elif b"host" not in read:
            raise MessageError("malformed_request", "an HTTP/1.1 request needs a Host header")
        if b"upgrade" in read and (chunked or length) and parser.should_upgrade():
            self._skipped = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (length or 0)
        minor = 0 if version == "1.0" else 1
        self.events.append(RequestHead(method, target, path, minor, keep_alive, relay, read, length, chunked))

    def on_message_complete(self) -> None:
        if self._skipped:
            return
        self.events.append(END)
        self._in_head = True


def origin_form(method: str, target: bytes, read: dict[bytes, bytes]) -> bytes:
    """Path and query of an absolute-form target, whose authority replaces Host in `read` (RFC 9112, 3.2.2).

    `*` stays. Raises MessageError for anything else.
    """
    if target == b"*" and method == "OPTIONS":
        return target
    scheme, found, rest = target.partition(b"://")
    if method == "CONNECT" or not found or scheme.lower() not in (b"http", b"https"):
        raise MessageError("malformed_request", "the request target must be a path or an http:// address")
    end = min((rest.find(mark) for mark in (b"/", b"?") if mark in rest), default=len(rest))
    read[b"host"] = rest[:end]
    path = rest[end:]
    return path if path.startswith(b"/") else b"/" + path
