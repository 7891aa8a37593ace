"""Server-sent events as a client sees them: how many, when the first, and whether the stream said that it is over."""

from __future__ import annotations

ENDS = (b"data: [DONE]", b"data:[DONE]", b"event: message_stop", b"event:message_stop")
"""How an OpenAI and an Anthropic stream announce their end."""
ERRORS = (b'data: {"error"', b'data:{"error"', b"event: error", b"event:error")
LONGEST_LINE = 1 << 20
"""Bytes that are looked at of one line."""


class EventCounter:
    """Counts the events of one stream, however its bytes are cut."""

    __slots__ = ("_data", "_line", "ended", "error", "first", "last", "received")

    def __init__(self) -> None:
        self._line = b""
        self._data = False
        self.received = 0
        """Events with data."""
        self.first: float | None = None
        """When the first event was there."""
        self.last: float | None = None
        self.ended = False
        """The stream said that it is over."""
        self.error = ""
        """The text of an error event."""

    def feed(self, data: bytes, now: float) -> None:
        """The next bytes, which came at `now`."""
        text = self._line + data
        if b"\r" in text:
            # A line ends with LF, CR or both. A CR at the end may be half of both: it waits for what follows.
            held = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        lines = text.split(b"\n")
        self._line = lines.pop()[:LONGEST_LINE]
        for line in lines:
            self._take(line, now)

    def _take(self, line: bytes, now: float) -> None:
        if not line:
            if self._data:
                self._data = False
                self.received += 1
                self.last = now
                if self.first is None:
                    self.first = now
            return
        if line.startswith(b"data:"):
            self._data = True
        if line.startswith(ENDS):
            self.ended = True
        elif line.startswith(ERRORS):
            self.error = line.decode("utf-8", "replace")[:300]
