"""A large body on disk, in a file without a name: nothing of it is left when the process ends, however it ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Final

READ: Final = 256 << 10
"""Bytes that are read in one step: what a connection takes before it asks for a pause."""

Segment = bytes | tuple[int, int]
"""Bytes, or a range of the file."""


class SpillFile:
    """One body. Its bytes are written once, in order, and read as often as the body is sent.

    The file is written and read on the loop: what the system's cache takes costs less than a thread would.
    """

    def __init__(self, directory: str) -> None:
        """Raises OSError."""
        self._file = tempfile.TemporaryFile(  # noqa: SIM115 - it lives as long as the request
            prefix="steelyard-", dir=directory or None, buffering=0
        )
        self.size = 0

    def write(self, pieces: Sequence[bytes]) -> None:
        """Append. Raises OSError, for one when the disk is full."""
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view) or 0 :]
            self.size += len(piece)

    def read(self, start: int, end: int) -> bytes:
        """At most READ bytes of a range, from its start."""
        return os.pread(self._file.fileno(), min(end - start, READ), start)

    def close(self) -> None:
        self._file.close()

    def segments(self, spans: Sequence[tuple[int, int]], text: bytes) -> list[Segment]:
        """The whole, with `text` in place of each of some ranges."""
        found: list[Segment] = []
        done = 0
        for start, end in spans:
            if done < start:
                found.append((done, start))
            found.append(text)
            done = end
        if done < self.size:
            found.append((done, self.size))
        return found


class Sending:
    """How far a body on disk has been sent, one time."""

    def __init__(self, file: SpillFile, segments: Sequence[Segment]) -> None:
        self._file = file
        self._left = list(reversed(segments))

    def next(self) -> bytes:
        """The next bytes; empty at the end."""
        left = self._left
        if not left:
            return b""
        segment = left.pop()
        if isinstance(segment, bytes):
            return segment or self.next()
        start, end = segment
        data = self._file.read(start, end)
        if start + len(data) < end:
            left.append((start + len(data), end))
        return data


def size_of(segments: Sequence[Segment]) -> int:
    """Bytes of all of them."""
    return sum(len(segment) if isinstance(segment, bytes) else segment[1] - segment[0] for segment in segments)
