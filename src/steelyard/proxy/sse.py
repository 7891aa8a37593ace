"""Server-sent events that pass by: what they say, without changing where they are cut.

Lines and events are as in the WHATWG HTML standard, section "Server-sent events": lines end with CR, LF or CRLF,
an event ends with an empty line.
"""

from __future__ import annotations

from typing import Final

from steelyard.dialects.events import event_reader
from steelyard.dialects.operation import Usage

LARGEST_EVENT: Final = 1 << 20
"""Bytes of an event that are kept for reading. A larger one passes like any other, and is not read."""

_BOM: Final = b"\xef\xbb\xbf"


class StreamScanner:
    """Reads usage, the time of the first token, errors and the end from the bytes of a stream.

    However the stream is cut, the results are the same. Usage counts that come several times are cumulative, so that
    the last one is right (vLLM's continuous usage, Anthropic's message_delta).
    """

    __slots__ = (
        "_after_cr",
        "_anthropic",
        "_at_start",
        "_data",
        "_lines",
        "_name",
        "_parts",
        "_quiet",
        "_read",
        "_size",
        "_skipping",
        "_typed",
        "_usual",
        "done",
        "error",
        "events",
        "first_token_at",
        "usage",
    )

    def __init__(self, dialect: str) -> None:
        self._anthropic = dialect == "anthropic"
        # How an event begins that is passed over once the first token was seen, and its lines with the empty one.
        self._usual = b"event: content_block_delta\ndata: {" if self._anthropic else b"data: {"
        self._lines = 3 if self._anthropic else 2
        self._quiet = False  # between events, and only looking for usage, errors and the end
        self._read = event_reader(dialect)
        self.first_token_at: float | None = None
        """When the first event with output was complete, on the clock of `now`."""
        self.usage: Usage | None = None
        self.error: bytes | None = None
        """The data of the first event that told an error, as it was sent."""
        self.done = False
        """Whether an event has said that the answer is complete. Not every dialect has one."""
        self.events = 0
        """Complete events."""
        self._typed = False
        self._at_start = True
        self._after_cr = False
        self._parts: list[bytes] = []  # of the line that has not ended
        self._data: list[bytes] = []  # lines of the event that has not ended
        self._name = b""
        self._size = 0  # bytes in lines of that event, complete or not
        self._skipping = False

    @property
    def between_events(self) -> bool:
        """Whether the stream could be ended here, or an event inserted, without damage to another event."""
        return not self._size

    def feed(self, data: bytes, now: float) -> None:
        """Take the bytes of one read, which came at `now` seconds."""
        # Whole events with nothing to read in them, of which only the number matters, and that must be exact.
        # (`find` takes half the time of `in`.)
        start = self._usual
        if (
            self._quiet
            and data.startswith(start)
            and data.find(b'"error"') < 0
            and data.find(b"\r") < 0
            and (data.find(b'"usage"') < 0 or data.count(b'"usage"') == data.count(b'"usage":null'))
            and data.endswith(b"\n\n")
        ):
            if data.find(b"\n", len(start)) == len(data) - 2:
                self.events += 1
                return
            events = data.count(b"\n\n" + start) + 1
            if data.count(b"\n") == self._lines * events:
                self.events += events
                return
        self._feed_lines(data, now)

    def end(self, now: float) -> None:
        """The stream is over. An event without its empty line counts too, as it does for most clients."""
        if self._size:
            self._feed_lines(b"\n\n", now)

    def _feed_lines(self, data: bytes, now: float) -> None:
        if self._after_cr and data:
            self._after_cr = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            self._size -= sum(map(len, self._parts))
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
        for line in lines:
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(_BOM)
            if line:
                self._line(line)
            else:
                self._dispatch(now)
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LARGEST_EVENT:
                self._skip()
        self._quiet = not (self._size or self._after_cr or self._typed or self.first_token_at is None)

    def _line(self, line: bytes) -> None:
        self._size += len(line) + 1
        if self._size > LARGEST_EVENT:
            self._skip()
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif line.startswith(b"event:"):
            self._name = line[7:] if line.startswith(b" ", 6) else line[6:]

    def _skip(self) -> None:
        """Keep nothing of this event, but that the line is not empty."""
        self._skipping = True
        self._size = LARGEST_EVENT + 1
        self._data.clear()
        if self._parts:
            self._parts = [b"."]

    def _dispatch(self, now: float) -> None:
        name = self._name
        self._size = 0
        self._name = b""
        if self._skipping:
            self._skipping = False
            self.events += 1
            if self.first_token_at is None:
                self.first_token_at = now  # nothing but output is that large
            return
        if not self._data:
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self.events += 1
        if data.startswith(b"[DONE]"):
            self.done = True
            return
        if (
            self.first_token_at is not None
            and not self._typed
            and b'"error"' not in data
            and name != b"error"
            and (b'"usage"' not in data or data.count(b'"usage"') == data.count(b'"usage":null'))
            and not (self._anthropic and b"message_stop" in data)
        ):
            return
        event = self._read(data)
        if event.typed:
            self._typed = True
        if event.done:
            self.done = True
        if event.error or name == b"error":
            if self.error is None:
                self.error = data
        elif event.token and self.first_token_at is None:
            self.first_token_at = now
        usage = event.usage
        if usage is not None:
            if self._anthropic and self.usage is not None and not usage.prompt_tokens:
                # message_start counts the prompt, message_delta the output.
                usage = Usage(self.usage.prompt_tokens, usage.completion_tokens, self.usage.cached_tokens)
            self.usage = usage
