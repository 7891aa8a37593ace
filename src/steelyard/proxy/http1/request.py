"""The bytes of a client's connection as events."""

from __future__ import annotations

import re
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
        "upgrade",
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
        self.upgrade = b""
        """The protocol that the client wants to go on with, if it is one that may be passed on; else empty."""


class RequestReader:
    """Turns the bytes of a client connection into events: RequestHead, bytes (of its body), END, and so on.

    Behind a request with an `upgrade` nothing is read before it is known what the bytes are: they are held until
    `go_on` (HTTP) or `take_held` (whatever was agreed on).
    """

    __slots__ = (
        "_classify",
        "_fed",
        "_held",
        "_in_head",
        "_known",
        "_limit",
        "_muted",
        "_offered",
        "_parser",
        "_read",
        "_relay",
        "_skipped",
        "_target",
        "error",
        "events",
        "on_body",
        "upgrading",
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
        self._offered = False
        """The message that is being read may end HTTP."""
        self.upgrading = False
        """Bytes are held."""
        self._held = b""
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
        if self.upgrading:
            self._held += data
            return events
        self._fed += len(data)
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                if self._offered:
                    self._offered = False
                    self.upgrading = True
                    self._held = bytes(rest)
                    break
                # One that is not taken is ignored (RFC 9110, 7.8): the body follows, or the next request.
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

    def go_on(self) -> list[RequestHead | bytes | End]:
        """The other protocol was refused: the events in what was held."""
        self.upgrading = False
        held, self._held = self._held, b""
        return self.feed(held)

    def take_held(self) -> bytes:
        """The other protocol was agreed on: what was held is its."""
        held, self._held = self._held, b""
        return held

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
        if b"#" in target:
            # RFC 9112, 3.2: a fragment stays with the client. Servers differ in what they make of one.
            raise MessageError("malformed_request", "a request target has no fragment: no # in it")
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
        minor = 0 if version == "1.0" else 1
        head = RequestHead(method, target, path, minor, keep_alive, relay, read, length, chunked)
        if b"upgrade" in read and parser.should_upgrade():
            if chunked or length:
                self._skipped = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (length or 0)
            elif minor and may_pass(read[b"upgrade"]):
                head.upgrade = read[b"upgrade"]
                self._offered = True
        self.events.append(head)

    def on_message_complete(self) -> None:
        if self._skipped:
            return
        self.events.append(END)
        self._in_head = True


_PROTOCOL: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?").fullmatch
_NEVER: Final = (b"h2c", b"http", b"tls")


def may_pass(upgrade: bytes) -> bool:
    """Whether an Upgrade header names one protocol that client and node may go on with, unseen.

    Not HTTP/2, in which a client could ask for anything behind the gateway's back, nor TLS. A list of several is not
    passed on: what of it the node takes could not be told from what it was offered.
    """
    return _PROTOCOL(upgrade) is not None and not upgrade.lower().startswith(_NEVER)


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
