"""As much of WebSocket (RFC 6455) as a relay needs: where a frame ends, and how to say goodbye.

The bytes themselves pass untouched, with their masks, extensions and close codes. The gateway speaks only where one
side has broken off without a word, so that the other one hears why.
"""

from __future__ import annotations

from typing import Final

GOING_AWAY: Final = 1001
BAD_GATEWAY: Final = 1014
"""The node broke off. (IANA's registry; 1006 says the same and must never be sent.)"""

CLOSE: Final = 8
LONGEST_HEAD: Final = 14


class FrameScanner:
    """Follows the frames of one direction, however they are cut."""

    __slots__ = ("_head", "_left", "closed")

    def __init__(self) -> None:
        self._head = b""
        """The first bytes of a head that is not whole."""
        self._left = 0
        """Bytes of the payload that are to come."""
        self.closed = False
        """A close frame has begun: nothing may follow it."""

    @property
    def between_frames(self) -> bool:
        return not (self._head or self._left)

    def feed(self, data: bytes) -> None:
        """Take note of what passes."""
        position, end = 0, len(data)
        while position < end:
            if self._left:
                step = min(self._left, end - position)
                self._left -= step
                position += step
                continue
            known = len(self._head)
            head = self._head + data[position : position + LONGEST_HEAD - known]
            length = head_length(head)
            if length > len(head):
                self._head = head
                return
            position += length - known
            self._head = b""
            self._left = payload_length(head)
            if head[0] & 15 == CLOSE:
                self.closed = True


def head_length(head: bytes) -> int:
    """Bytes of a frame's head, as far as its first bytes tell: more than there are when they do not."""
    if len(head) < 2:
        return 2
    size = head[1] & 127
    return 2 + (2 if size == 126 else 8 if size == 127 else 0) + (4 if head[1] & 128 else 0)


def payload_length(head: bytes) -> int:
    """Bytes of the payload that follows a whole head."""
    size = head[1] & 127
    if size < 126:
        return size
    return int.from_bytes(head[2:4] if size == 126 else head[2:10], "big")


def close_frame(code: int, reason: str, mask: bytes = b"") -> bytes:
    """A close frame. From a client it needs a `mask` of four random bytes."""
    text = reason.encode()[:120].decode("utf-8", "ignore")
    payload = code.to_bytes(2, "big") + text.encode()
    if mask:
        payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes((128 | CLOSE, len(payload) | (128 if mask else 0))) + mask + payload
