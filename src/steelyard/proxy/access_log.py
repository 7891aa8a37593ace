"""The access log: one JSON line a request, written by a thread so that a slow reader of it stops no request."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec

HELD_AT_MOST = 32 << 20
"""Bytes of lines that may wait for the writer; beyond, lines are dropped and counted."""


class Entry(msgspec.Struct, omit_defaults=True):
    """One line. Times are microseconds where the name ends in `us`, sizes bytes; what does not apply is left out."""

    ts: float
    """When the answer ended, Unix time in seconds."""
    id: str
    client: str
    method: str
    path: str
    status: int
    outcome: str
    """ok, or the code of the error; client_gone, node_broke, node_silent, ... for an answer that was cut."""
    total_us: int
    """From the request's head to the end of its answer."""
    dialect: str = ""
    route: str = ""
    node: str = ""
    reason: str = ""
    """Why this node."""
    first_byte_us: int = 0
    """From sending the request to the node to the head of its answer."""
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    """As the client wrote it."""
    tenant: str = ""
    stream: bool = False
    first_token_us: int = 0
    """From the request's head to the first token of a stream."""
    attempts: int = 1
    queued_us: int = 0
    trace: str = ""
    """The trace id of `traceparent`."""
    error: str = ""


class AccessLog:
    """Collects entries; `flush` (called periodically) hands them to the writer thread."""

    def __init__(self, write: Callable[[bytes], object] | None) -> None:
        """`write` gets whole lines; None: there is no access log."""
        self._write = write
        self._lines: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._given = 0
        self._written = 0
        self.dropped = 0
        self.enabled = write is not None
        self._thread: threading.Thread | None = None
        if write is not None:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()

    @classmethod
    def to_descriptor(cls, descriptor: int) -> AccessLog:
        """An access log into an open file descriptor (1 is stdout, 2 stderr)."""

        def write(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]

        return cls(write)

    def add(self, entry: Entry) -> None:
        self._lines.append(self._encode(entry))

    def flush(self) -> None:
        """Pass on what was added."""
        lines = self._lines
        if not lines:
            return
        lines.append(b"")
        batch = b"\n".join(lines)
        # Each of the two counts has one writing thread.
        if self._given - self._written + len(batch) > HELD_AT_MOST:
            self.dropped += len(lines) - 1
        else:
            self._given += len(batch)
            self._queue.put(batch)
        lines.clear()

    def close(self, timeout: float = 5.0) -> None:
        """Write what is left and stop the thread; gives up after `timeout` seconds when nobody reads."""
        self.flush()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
            self._thread = None

    def _run(self) -> None:
        assert self._write is not None
        while (batch := self._queue.get()) is not None:
            try:
                self._write(batch)
            except OSError:
                # Nobody reads, or the disk is full: requests go on, the lines are lost and counted.
                self.dropped += batch.count(b"\n")
            self._written += len(batch)
