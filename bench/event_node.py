"""A back end for streams and big bodies: raw protocol, no parsing beyond framing, several ports in one process.

``python -m bench.event_node --ports 9101,9102 --events 100 --gap-ms 8`` answers every POST whose body asks
for a stream with that many OpenAI chunk events, and every other POST with one plain answer after the whole
body has been swallowed. ``--hold`` sends the head and one event and then stays silent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
from typing import cast

from bench import payloads
from bench.processes import LOOPBACK, raise_descriptor_limit

# A body longer than this is counted and dropped, and answered plainly: a small request is the one that streams.
KEPT_BODY_BYTES = 64 * 1024
BACKLOG = 4096
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
# Routers that decode a body write it anew, with other blanks.
_STREAM = re.compile(rb'"stream":\s*true')
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)


def _plain(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


ANSWER = _plain(b"200 OK", payloads.chat_answer())
MODELS = _plain(b"200 OK", payloads.models_answer())
HEALTHY = _plain(b"200 OK", b"{}")
NOT_FOUND = _plain(b"404 Not Found", b'{"error": {"message": "the bench node has no such path", "code": 404}}')


class EventNode(asyncio.Protocol):
    """One connection of the back end; requests on it come one after the other."""

    def __init__(self, events: int, gap_seconds: float, hold: bool) -> None:
        self._events = events
        self._gap = gap_seconds
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._start_over()

    def _start_over(self) -> None:
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._tail = b""
        self._chunked = False
        self._missing = 0
        self._wants_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._buffer[:end])
            data = bytes(self._buffer[end + 4 :])
            self._buffer.clear()
            length = _LENGTH.search(self._head)
            self._missing = int(length[1]) if length else 0
            self._chunked = _CHUNKED.search(self._head) is not None
        if len(self._buffer) < KEPT_BODY_BYTES:
            self._buffer += data[:KEPT_BODY_BYTES]
        if self._chunked:
            # No proxy here adds trailers to a request, so these five bytes can only be the end of the body.
            self._tail = (self._tail + data[-5:])[-5:]
            if self._tail != payloads.CHUNKED_END:
                return
        else:
            self._missing -= len(data)
            if self._missing > 0:
                return
        head, body = self._head, bytes(self._buffer)
        self._start_over()
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST "):
            if len(body) < KEPT_BODY_BYTES and _STREAM.search(body):
                self._begin_stream()
            else:
                self._transport.write(ANSWER)
        elif b" /v1/models " in head:
            self._transport.write(MODELS)
        elif b" /health" in head:
            self._transport.write(HEALTHY)
        else:
            self._transport.write(NOT_FOUND)

    def _begin_stream(self) -> None:
        if self._hold:
            self._transport.write(payloads.STREAM_HEAD + payloads.STREAM_EVENT)
            return
        self._transport.write(payloads.STREAM_HEAD)
        # Every event has its own due time, so that a late timer does not stretch the stream; the phase is
        # random, so that streams that began together do not send together.
        self._left = self._events
        self._due = self._loop.time() + random.random() * self._gap
        self._timer = self._loop.call_at(self._due, self._next_event)

    def _next_event(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._timer = None
            self._transport.write(payloads.STREAM_END)
            return
        self._transport.write(payloads.STREAM_EVENT)
        self._due += self._gap
        self._timer = self._loop.call_at(self._due, self._next_event)


async def serve(ports: list[int], events: int, gap_seconds: float, hold: bool) -> None:
    """Listen on the loopback `ports` until cancelled."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for port in ports:
            server = await loop.create_server(
                lambda: EventNode(events, gap_seconds, hold), LOOPBACK, port, backlog=BACKLOG
            )
            await stack.enter_async_context(server)
        await asyncio.Event().wait()


def main() -> None:
    """Command line of the back end."""
    parser = argparse.ArgumentParser(prog="python -m bench.event_node", description=__doc__)
    parser.add_argument("--ports", required=True, help="loopback ports, separated by commas")
    parser.add_argument("--events", type=int, default=100, help="events of a stream, the last one included")
    parser.add_argument("--gap-ms", type=float, default=8.0, help="milliseconds between two events")
    parser.add_argument("--hold", action="store_true", help="send one event and then stay silent")
    options = parser.parse_args()
    raise_descriptor_limit()
    ports = [int(port) for port in options.ports.split(",")]
    from bench.loops import run

    with contextlib.suppress(KeyboardInterrupt):
        run(serve(ports, options.events, options.gap_ms / 1000, options.hold))


if __name__ == "__main__":
    main()
