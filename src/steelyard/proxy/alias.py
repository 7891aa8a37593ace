"""Model aliases on the way: the node is asked for the model that it serves, the client sees the name that it used."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from steelyard.dialects import Operation

SPACE: Final = 32
"""Bytes of white space, each side of a colon, beyond which a member is not recognised. Engines write one or none."""

BACKSLASH: Final = 92


class Renaming:
    """The two names of one request's model."""

    __slots__ = ("_asked", "_events", "_hidden", "_longest", "_pattern", "_rest", "served")

    def __init__(self, asked: str, served: str, hidden: bool = True) -> None:
        """`hidden`: the client sees the name that it asked for."""
        self._hidden = hidden
        name = msgspec.json.encode(served)
        self._asked = b'"model"\\1' + msgspec.json.encode(asked).replace(b"\\", b"\\\\")
        self.served = served
        """The name that the node knows."""
        # Inside a JSON text an unescaped `"model": "name"` is always a member: in a string its quotes are escaped.
        self._pattern = re.compile(rb'(?<!\\)"model"(\s{0,%d}:\s{0,%d})%b' % (SPACE, SPACE, re.escape(name)))
        self._longest = len(b'"model":') + 2 * SPACE + len(name)
        self._events = False
        self._rest = b""
        """The end of what came, in which the first bytes of a match may stand."""

    def target(self, operation: Operation, target: bytes) -> bytes:
        """The request's target with the served name."""
        return operation.replace_target(target, self.served)

    def begin(self, content_type: bytes) -> bool:
        """Whether an answer of this type is renamed; if so, its length is no longer what the node said."""
        if not self._hidden:
            return False
        self._events = content_type.startswith(b"text/event-stream")
        return self._events or content_type.startswith(b"application/json")

    def answer(self, data: bytes) -> bytes:
        """What of the answer can go on now: all but the last few bytes, of a stream all whole lines."""
        if self._rest:
            data = self._rest + data
        cut = max(len(data) - self._longest, 0)
        if self._events:
            # A member stands in one line: what follows a whole line can begin no match in it.
            cut = max(cut, data.rfind(b"\n") + 1)
        for match in self._pattern.finditer(data):
            cut = max(cut, match.end())
        if cut and data[cut - 1] == BACKSLASH:
            # It belongs to what follows.
            cut -= 1
        self._rest = data[cut:]
        return self._pattern.sub(self._asked, data[:cut])

    def end(self) -> bytes:
        """The rest."""
        return self._pattern.sub(self._asked, self._rest)
