"""The bytes of a node's connection as heads, body pieces, and the end of answers."""

from __future__ import annotations

from typing import Final

import httptools

from steelyard.proxy.http1.headers import RELAY, TAKE, HeaderTable, MessageError, drop_listed, only_chunked
from steelyard.proxy.http1.writing import bodiless


class ResponseHead:
    """The head of a node's answer."""

    __slots__ = ("chunked", "content_length", "minor", "read", "reason", "relay", "status")

    def __init__(
        self,
        status: int,
        reason: bytes,
        relay: list[bytes],
        read: dict[bytes, bytes],
        content_length: int | None,
        chunked: bool,
    ) -> None:
        self.status = status
        self.reason = reason
        self.relay = relay
        self.read = read
        self.content_length = content_length
        self.chunked = chunked


RESPONSE_TABLE: Final = HeaderTable(
    read=(b"content-length", b"content-type", b"retry-after", b"content-encoding"), take=(b"x-request-id",)
)
"""The node's `x-request-id` is replaced by ours, which was sent to it."""
_known_in_response: Final = RESPONSE_TABLE.known.get


HEAD_LIMIT: Final = 256 << 10
"""Bytes of a node's head, or of a trailer: four times what clients may send."""


class ResponseReader:
    """Turns the bytes of a node connection into heads, body pieces, and the end of messages.

    After `feed`: `heads` holds what heads were completed (interim ones too), `pieces` the body bytes, `complete`
    whether the message has ended. Take what is there before the next feed: `take_body` and `heads.clear()`.
    """

    __slots__ = (
        "_body_expected",
        "_fed",
        "_offered",
        "_parser",
        "_read",
        "_reason",
        "_relay",
        "_status",
        "_until_eof",
        "complete",
        "heads",
        "keep_alive",
        "on_body",
        "pieces",
        "surplus",
        "switched",
    )

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        # A C method as the parser's callback: no Python frame for a piece of body.
        self.on_body = self.pieces.append
        self.heads: list[ResponseHead] = []
        self._parser = httptools.HttpResponseParser(self)
        self.complete = True
        self.surplus = False
        """The node sent more than its answer: the answer is whole, the connection of no more use."""
        self._body_expected = True
        self._fed = 0
        """Bytes since a head, a piece of body, or the end."""
        self.keep_alive = False
        """After the end: whether the connection can carry another request, if there is no surplus."""
        self._until_eof = False
        self._offered = b""
        self.switched: bytes | None = None
        """The node has agreed to the protocol that it was offered, with the head that came last; this is what has
        come behind it."""
        self._status = 0
        self._reason = b""
        self._relay: list[bytes] = []
        self._read: dict[bytes, bytes] = {}

    def expect(self, method: str, upgrade: bytes = b"") -> None:
        """A request was sent, which offered a protocol or not; its answer comes next."""
        self._offered = upgrade
        self.complete = False
        self.keep_alive = False
        self._status = 0
        self._body_expected = method != "HEAD"

    def feed(self, data: bytes) -> None:
        """Take in bytes. Raises MessageError when they are no answer."""
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._offered or self.heads[-1].read.get(b"upgrade", b"").lower() != self._offered.lower():
                raise MessageError("node_broke", "the node switched protocols without being asked") from None
            self.switched = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, MessageError):
                raise error.__context__ from None
            if not isinstance(error.__context__, _Surplus):
                raise
            self.surplus = True
        except httptools.HttpParserError as error:
            if not self.complete:
                raise MessageError("node_broke", f"the node's answer is not valid HTTP/1.1: {error}") from None
            self.surplus = True
        if self.pieces:
            self._fed = 0
            if not self._body_expected:
                # A body behind the head of an answer to HEAD is not the client's business.
                self.pieces.clear()
                self.surplus = True
        elif self.heads or self.complete:
            self._fed = 0
        elif self._fed > HEAD_LIMIT:
            raise MessageError("node_broke", f"{HEAD_LIMIT} bytes came without an end of head or trailer")

    def take_body(self) -> bytes:
        """The body bytes since the last call."""
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    def at_eof(self) -> bool:
        """The node closed its side. True when that is the legal end of the message."""
        if self._until_eof:
            self.complete = True
        return self.complete

    # callbacks of the parser

    def on_status(self, reason: bytes) -> None:
        if self.complete:
            raise _Surplus
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status >= 200:
            # A trailer field, or what follows the answer.
            return
        lower, disposition = _known_in_response(name) or RESPONSE_TABLE.classify(name)
        if disposition != TAKE:
            self._relay += (name, b": ", value, b"\r\n")
            if disposition == RELAY:
                return
        read = self._read
        read[lower] = read[lower] + b", " + value if lower in read else value

    def on_headers_complete(self) -> None:
        if self.complete:
            raise _Surplus
        reason, relay, read = self._reason, self._relay, self._read
        self._reason, self._relay, self._read = b"", [], {}
        if b"connection" in read:
            drop_listed(relay, read[b"connection"])
        length = int(read[b"content-length"]) if b"content-length" in read else None
        status = self._status = self._parser.get_status_code()
        if status < 100:
            raise MessageError("node_broke", f"the node answered with the status {status}, which is none")
        chunked = b"transfer-encoding" in read and only_chunked(read[b"transfer-encoding"], "node_broke")
        head = ResponseHead(status, reason, relay, read, length, chunked)
        self.heads.append(head)
        if status < 200:
            return
        if not self._body_expected:
            # llhttp cannot be told that an answer to HEAD has no body: the message ends here, and the parser
            # (which waits for one) is not used again.
            self.complete = True
        elif length is None and not head.chunked and not bodiless(status):
            self._until_eof = True

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self.complete = True
            # Only in this callback does llhttp know.
            self.keep_alive = self._body_expected and self._parser.should_keep_alive()


class _Surplus(Exception):
    """Raised inside the parser to stop it at the end of the answer."""
