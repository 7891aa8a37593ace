"""Model aliases on the way: the node is asked for the model that it serves, the client sees the name that it used."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from steelyard.dialects import Operation

HELD_ANSWER: Final = 8 << 20
"""Bytes of a plain JSON answer that are held to be renamed; a larger one passes as the node sent it."""


class Renaming:
    """The two names of one request's model."""

    __slots__ = ("_asked", "_events", "_held", "_pattern", "_size", "served")

    def __init__(self, asked: str, served: str) -> None:
        self._asked = b'"model"\\1' + msgspec.json.encode(asked).replace(b"\\", b"\\\\")
        self.served = served
        """The name that the node knows."""
        # Inside a JSON text an unescaped `"model": "name"` is always a member: in a string its quotes are escaped.
        self._pattern = re.compile(rb'"model"(\s*:\s*)' + re.escape(msgspec.json.encode(served)))
        self._events = False
        self._held: list[bytes] = []
        self._size = 0

    def target(self, operation: Operation, target: bytes) -> bytes:
        """The request's target with the served name."""
        return operation.replace_target(target, self.served)

    def begin(self, content_type: bytes) -> bool:
        """Whether an answer of this type is renamed; if so, its length is no longer what the node said."""
        self._events = content_type.startswith(b"text/event-stream")
        return self._events or content_type.startswith(b"application/json")

    def answer(self, data: bytes) -> bytes:
        """What of the answer can go on now: whole lines of a stream; nothing of a plain answer before its end."""
        held = self._held
        if self._events and (cut := data.rfind(b"\n") + 1):
            held.append(data[:cut])
            lines = b"".join(held)
            self._held = [data[cut:]] if cut < len(data) else []
            self._size = len(data) - cut
            return self._pattern.sub(self._asked, lines)
        held.append(data)
        self._size += len(data)
        if self._size <= HELD_ANSWER:
            return b""
        self._held = []
        self._size = 0
        return b"".join(held)

    def end(self) -> bytes:
        """The rest."""
        return self._pattern.sub(self._asked, b"".join(self._held))
