"""The body of a request: kept while it is read and may be sent again, or passed on as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from steelyard.core.refusal import Refusal
from steelyard.core.work import Work
from steelyard.dialects import FieldScanner, Operation
from steelyard.dialects.operation import LARGE_BODY
from steelyard.dialects.splice import splice
from steelyard.proxy.alias import Renaming
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.http1 import LAST_CHUNK, RequestHead, chunk
from steelyard.proxy.spill import Segment, Sending, SpillFile, size_of
from steelyard.proxy.upstream import WRITE_HIGH_WATER, NodeConnection

KEPT_BODY: Final = 64 << 10
"""Up to so many bytes a body is kept even if nothing in it is needed, so that the request can be sent again."""
MERGED: Final = 16 << 10
"""Pieces of fewer bytes are joined. The parser gives larger ones, but for chunks that are made to be small."""
SPILL_AT: Final = 8 << 20
"""Bytes of a kept body from which it is held on disk. Pictures in JSON are smaller; hours of sound are not."""
SPILL_STEP: Final = 512 << 10
"""Bytes that are written to disk in one go."""
PENDING_UPLOAD: Final = 256 << 10
"""Bytes of a streamed body that may wait for the node's connection."""


class RequestBody:
    """One request's body.

    It is *kept* where its fields decide (or where it is small), on disk when it is large, and *streamed* where nothing
    in it is needed. What is here of it counts in the gateway's `body_memory` and `body_disk`, until it is passed on or
    dropped.
    """

    # The first values stand on the class: see Exchange.
    size = 0
    """Bytes received."""
    held = 0
    """Of these, bytes that are here."""
    sent = False
    """Bytes of a streamed body went to a node: it cannot be sent again."""
    streamed = False
    """The body is passed on as it comes."""
    _scanner: FieldScanner | None = None
    _asked: list[bytes] | None = None
    """What the client sent, of a body in which the model was replaced."""
    _file: SpillFile | None = None
    """What is here of a large body, on disk."""
    _on_disk = 0
    """Bytes of it that count in `body_disk`: a write that fails may have written a part."""
    _segments: Sequence[Segment] = ()
    """What of it, and what else, is sent."""
    _sending: Sending | None = None
    _unscanned = b""
    """Bytes that the scanner has not seen: to show it a few at a time would be slow."""

    def __init__(self, head: RequestHead, operation: Operation, gateway: Gateway) -> None:
        self._gateway = gateway
        self._head = head
        if head.coded and operation.body != "none":
            # A compressed body is not opened: what it asks for is the node's to find out.
            operation = Operation(operation.dialect, operation.name)
        self._operation = operation
        self._pieces: list[bytes] = []
        if operation.body == "none" and head.has_body:
            self.streamed = head.content_length is None or head.content_length > KEPT_BODY

    def prepare(self, content_type: bytes) -> None:
        """Get ready for a body that is known to be large. Raises MalformedBody when its type says it is hopeless."""
        if not self.streamed:
            self._scanner = self._operation.scanner(content_type)

    def add(self, data: bytes, content_type: bytes) -> Refusal | None:
        """The next bytes. A Refusal when they are too many; raises MalformedBody when they make no sense."""
        self.size += len(data)
        limits = self._gateway.settings.limits
        if self.size > limits.body:
            return too_large(limits.body)
        pieces = self._pieces
        pieces.append(data)
        if len(data) < MERGED:
            # Chunks of a few bytes would take many times their size: they are joined, the equally large ones first.
            while len(pieces) > 1 and len(pieces[-1]) < MERGED and len(pieces[-2]) < 2 * len(pieces[-1]):
                last = pieces.pop()
                pieces[-1] += last
        self._account(len(data))
        if self.streamed:
            return None
        refusal = self.must_not_wait()
        if refusal is not None:
            return refusal
        if self.held > SPILL_AT or (self._file is not None and self.held > SPILL_STEP):
            refusal = self._spill()
            if refusal is not None:
                return refusal
        if self._scanner is not None:
            self._unscanned += data
            if len(self._unscanned) >= MERGED:
                self._scan()
        elif self.size > LARGE_BODY:
            # A chunked body that turns out to be large: from here on it is looked through as it comes.
            self._scanner = self._operation.scanner(content_type)
            if self._scanner is not None:
                for piece in pieces:
                    self._scanner.feed(piece)
        return None

    def _spill(self) -> Refusal | None:
        """Move what is held to disk. A Refusal when there is no room."""
        gateway = self._gateway
        limits = gateway.settings.limits
        if gateway.body_disk + self.held > limits.body_disk:
            return Refusal("overloaded", "too many large requests are held on disk", 5.0)
        try:
            if self._file is None:
                self._file = SpillFile(limits.body_directory)
            self._file.write(self._pieces)
        except OSError as error:
            return Refusal("overloaded", f"a large request cannot be held on disk: {error.strerror or error}", 5.0)
        gateway.body_disk += self.held
        self._on_disk += self.held
        self._pieces = []
        self._account(-self.held)
        return None

    def whole(self) -> Refusal | None:
        """The request is complete. A Refusal when its end cannot be held."""
        if self._file is None:
            return None
        refusal = self._spill() if self._pieces else None
        self._segments = [(0, self._file.size)]
        return refusal

    def _scan(self) -> None:
        unscanned, self._unscanned = self._unscanned, b""
        assert self._scanner is not None
        self._scanner.feed(unscanned)

    def must_not_wait(self) -> Refusal | None:
        """The refusal of a body that cannot be passed on yet, when all bodies together are too many bytes."""
        gateway = self._gateway
        if gateway.body_memory > gateway.settings.limits.body_memory:
            return Refusal("overloaded", "too many large requests are being received", 5.0)
        return None

    def read(self, content_type: bytes, target: bytes) -> Work:
        """What the request asks for, once it is whole (or at once when it streams). Raises MalformedBody."""
        if self._scanner is not None:
            if self._unscanned:
                self._scan()
            return self._scanner.work()
        pieces = self._pieces
        if len(pieces) > 1 and not self.streamed:
            self._pieces = pieces = [b"".join(pieces)]
        return self._operation.read(pieces[0] if pieces and not self.streamed else b"", content_type, target)

    def rename(self, renaming: Renaming, content_type: bytes) -> None:
        """Put the served model's name in place of the alias."""
        scanner = self._scanner
        if self._file is not None and scanner is not None:
            self._segments = self._file.segments(scanner.model_spans(), scanner.written(renaming.served))
            return
        if self.streamed or not self._pieces:
            return
        before = self._pieces
        if self._asked is None:
            self._asked = before
        # From what the client sent: it may be renamed a second time.
        asked = self._asked
        if scanner is not None:
            # A large body was looked through as it came; to do it again in one go would hold the loop.
            self._pieces = splice(asked, scanner.model_spans(), scanner.written(renaming.served))
        else:
            self._pieces = [self._operation.replace_model(b"".join(asked), content_type, renaming.served)]
        self._account(sum(map(len, self._pieces)) - sum(map(len, before)))

    def framing(self) -> bytes:
        """The header line for the node that says where the body ends."""
        if self.streamed:
            if self._head.chunked:
                return b"Transfer-Encoding: chunked\r\n"
            return b"Content-Length: %d\r\n" % (self._head.content_length or 0)
        if self._file is not None:
            return b"Content-Length: %d\r\n" % size_of(self._segments)
        if self._pieces:
            size = len(self._pieces[0]) if len(self._pieces) == 1 else sum(map(len, self._pieces))
            return b"Content-Length: %d\r\n" % size
        if self._head.content_length is not None or self._head.chunked:
            return b"Content-Length: 0\r\n"
        return b""

    def send(self, connection: NodeConnection, head: bytes, received: bool) -> None:
        """Write the head, and what is here of the body. `received`: the request is whole."""
        pieces = self._pieces
        transport = connection.transport
        if self._file is not None:
            transport.write(head)
            self._sending = Sending(self._file, self._segments)
            self.go_on(connection)
            return
        if not self.streamed:
            if not pieces:
                transport.write(head)
            elif len(pieces) == 1 and len(pieces[0]) <= LARGE_BODY:
                transport.write(head + pieces[0])
            else:
                transport.write(head)
                transport.writelines(pieces)
            connection.request_sent = True
            return
        transport.write(head)
        self.pass_on(connection)
        if received:
            self.finish(connection)

    def go_on(self, connection: NodeConnection) -> None:
        """Send on, of a body on disk, as much as the node takes now."""
        sending, transport = self._sending, connection.transport
        while sending is not None:
            if transport.get_write_buffer_size() > WRITE_HIGH_WATER:
                return
            data = sending.next()
            if data:
                transport.write(data)
            else:
                self._sending = sending = None
                connection.request_sent = True

    def pass_on(self, connection: NodeConnection) -> None:
        """Write what has come of a streamed body."""
        pieces, self._pieces = self._pieces, []
        self._account(-self.held)
        for piece in pieces:
            self.sent = True
            connection.transport.write(chunk(piece) if self._head.chunked else piece)

    def finish(self, connection: NodeConnection) -> None:
        """The streamed body is whole."""
        if self._head.chunked:
            connection.transport.write(LAST_CHUNK)
        connection.request_sent = True

    @property
    def overflowing(self) -> bool:
        """Whether no more of a streamed body should be read before the node's connection takes what is here."""
        return self.streamed and self.held > PENDING_UPLOAD

    def drop(self) -> None:
        """The body is not needed any more."""
        file = self._file
        if file is not None:
            self._file = self._sending = None
            self._gateway.body_disk -= self._on_disk
            self._on_disk = 0
            file.close()
        if self.held:
            self._pieces = []
            self._asked = self._scanner = None
            self._account(-self.held)

    def _account(self, size: int) -> None:
        self.held += size
        self._gateway.body_memory += size


def too_large(limit: int) -> Refusal:
    """The refusal of a body over the limit, in bytes."""
    return Refusal("body_too_large", f"the body is larger than {limit} bytes")
