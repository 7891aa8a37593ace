"""A multipart/form-data body that arrives in pieces (RFC 7578): small fields, and the start and size of files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steelyard.dialects.operation import MalformedBody

LIMIT = 4096
"""Bytes of a part that are kept: small fields, and the header of an audio file."""
LARGEST_HEAD = 8192
"""Bytes of the headers of one part."""
MOST_PARTS = 1000

_PARAMETER = re.compile(r';\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*)')


@dataclass(slots=True)
class Part:
    """One part of a form."""

    name: str
    filename: str | None
    content_type: str
    start: bytes = b""
    """The first bytes of the content, at most LIMIT; all of it when `size` is not larger."""
    size: int = 0
    """Of the content, in bytes."""
    offset: int = 0
    """Of the content in the body."""

    @property
    def text(self) -> str:
        """The content of a small field. Raises MalformedBody."""
        if self.size > len(self.start):
            raise MalformedBody(f"form field {self.name} is longer than {LIMIT} bytes")
        try:
            return self.start.decode()
        except UnicodeDecodeError as error:
            raise MalformedBody(f"form field {self.name} is not valid UTF-8 (byte {error.start} of it)") from None


def parameters(header: str) -> dict[str, str]:
    """The parameters of a header value, unquoted, by lower-case name; the first of two equal ones counts."""
    found: dict[str, str] = {}
    for name, value in _PARAMETER.findall(header):
        if value.startswith('"'):
            # Browsers write a backslash of a file name as it is; only an escaped quote or backslash is an escape.
            value = re.sub(r'\\(["\\])', r"\1", value[1:-1])
        found.setdefault(name.lower(), value)
    return found


def boundary_of(content_type: bytes) -> bytes:
    """The boundary of a multipart content type. Raises MalformedBody."""
    text = content_type.decode("latin-1")
    kind = text.partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise MalformedBody(f"content-type must be multipart/form-data, not {kind or 'absent'}")
    boundary = parameters(text[len(text.partition(";")[0]) :]).get("boundary", "")
    if not boundary:
        raise MalformedBody("content-type multipart/form-data has no boundary")
    if len(boundary) > 70:
        raise MalformedBody("the boundary of multipart/form-data is longer than 70 characters")
    return boundary.encode("latin-1")


PREAMBLE, HEAD, CONTENT, EPILOGUE = range(4)
_line_end = re.compile(rb"[ \t]{0,100}(\r\n)?").match
"""After a boundary. RFC 2046 allows padding; with more than this it is none, so that there is an end of waiting."""


class MultipartFields:
    """The parts of a form, in the order in which they stand. However the body is cut, the results are the same."""

    __slots__ = ("_delimiter", "_false_delimiters", "_offset", "_part", "_rest", "_state", "parts")

    def __init__(self, content_type: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary_of(content_type)
        self._false_delimiters = 0
        self._state = PREAMBLE
        self._rest = b"\r\n"  # so that a boundary at the very start is found like any other
        self._offset = -2  # of the first byte of `rest` in the body
        self._part: Part | None = None
        self.parts: list[Part] = []

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Raises MalformedBody."""
        data = self._rest + piece
        used = self._advance(data)
        self._offset += used
        self._rest = data[used:]

    def close(self) -> list[Part]:
        """The parts, after the last piece. Raises MalformedBody."""
        if self._state == PREAMBLE:
            raise MalformedBody(f"multipart body does not contain its boundary {self._delimiter[4:]!r}")
        if self._state != EPILOGUE:
            raise MalformedBody("multipart body ends before its closing boundary")
        return self.parts

    def _advance(self, data: bytes) -> int:
        """Read on from the start of `data`, and say how far that was possible."""
        position = 0
        while self._state != EPILOGUE:
            state = self._state
            if state == HEAD:
                position = self._head(data, position)
            else:
                position = self._content(data, position)
            if self._state == state:
                return position
        return len(data)

    def _content(self, data: bytes, position: int) -> int:
        delimiter = self._delimiter
        search = position
        while True:
            found = data.find(delimiter, search)
            if found < 0:
                # The last bytes may be the start of a delimiter that is still to come.
                end = max(position, len(data) - len(delimiter) + 1)
                self._take(data, position, end)
                return end
            after = found + len(delimiter)
            line = _line_end(data, after)
            assert line is not None
            if line[1] or data.startswith(b"--", after):
                self._take(data, position, found)
                self._part = None
                self._state = HEAD if line[1] else EPILOGUE
                return line.end()
            if data[line.end() : line.end() + 2] in (b"", b"\r", b"-"):
                self._take(data, position, found)
                return found
            # What follows says that it only looks like the boundary: it belongs to the content.
            self._false_delimiters += 1
            if self._false_delimiters > MOST_PARTS:
                raise self._malformed("too much that looks like the boundary", found)
            search = found + 1

    def _take(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part is None:
            return
        room = LIMIT - len(part.start)
        if room > 0:
            part.start += data[start : min(end, start + room)]
        part.size += end - start

    def _head(self, data: bytes, position: int) -> int:
        if data.startswith(b"\r\n", position):
            end = position
            after = position + 2
        else:
            end = data.find(b"\r\n\r\n", position)
            after = end + 4
        if (end if end >= 0 else len(data)) - position > LARGEST_HEAD:
            raise self._malformed(f"the headers of a part are longer than {LARGEST_HEAD} bytes", position)
        if end < 0:
            return position
        if len(self.parts) >= MOST_PARTS:
            raise self._malformed(f"more than {MOST_PARTS} parts", position)
        part = self._part_of(data[position:end], position)
        part.offset = self._offset + after
        self.parts.append(part)
        self._part = part
        self._state = CONTENT
        return after

    def _part_of(self, head: bytes, position: int) -> Part:
        name = filename = None
        content_type = ""
        try:
            text = head.decode()
        except UnicodeDecodeError:
            text = head.decode("latin-1")
        for line in text.split("\r\n"):
            key, _, value = line.partition(":")
            key = key.strip().lower()
            if key == "content-disposition":
                kind, semicolon, rest = value.partition(";")
                if kind.strip().lower() == "form-data":
                    found = parameters(semicolon + rest)
                    name = found.get("name")
                    filename = found.get("filename")
            elif key == "content-type":
                content_type = value.strip().lower()
        if name is None:
            raise self._malformed("a part has no Content-Disposition: form-data with a name", position)
        return Part(name, filename, content_type)

    def _malformed(self, what: str, position: int) -> MalformedBody:
        return MalformedBody(f"multipart body is malformed: {what} (byte {self._offset + position})")
