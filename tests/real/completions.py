"""Completions as plain HTTP: what is asked, and how answers are read."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

from tests.real.engine import MODEL

PROMPT = "The capital of France is Paris. The capital of Italy is"
STORY = "Once upon a time, in a small village by the sea, there lived an old fisherman who"


def asked(prompt: str = PROMPT, max_tokens: int = 24, **fields: Any) -> dict[str, Any]:
    """A request whose answer depends on nothing but the weights."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 7, **fields}


def events(stream: bytes) -> list[bytes]:
    """The events of a stream: what stands between empty lines, comments (pings) left out."""
    found = stream.replace(b"\r\n", b"\n").split(b"\n\n")
    assert found.pop() == b"", "the last event has no end"
    return [event for event in found if not event.startswith(b":")]


def data(event: bytes) -> Any:
    """The JSON of an event; None of the last one, [DONE]."""
    name, _, value = event.partition(b": ")
    assert name == b"data", event
    return None if value == b"[DONE]" else json.loads(value)


def text(stream: bytes) -> str:
    """The text that a whole stream carries."""
    parts = [data(event) for event in events(stream)]
    assert parts.pop() is None, "the stream does not end with [DONE]"
    return "".join(part["choices"][0]["text"] for part in parts)


class RawStream:
    """A request over a socket of its own, whose answer is read as bytes: chunked framing and the end are seen."""

    def __init__(self, port: int, body: dict[str, Any], path: str = "/v1/completions") -> None:
        payload = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.settimeout(120)
        self._sock.sendall(head.encode() + payload)
        self._rest = b""
        self.status = 0
        self.headers: dict[str, str] = {}

    def read_head(self) -> None:
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def chunks(self) -> Iterator[bytes]:
        """The chunks of the body, up to its proper end. Raises EOFError when the connection ends before."""
        while True:
            while b"\r\n" not in self._rest:
                self._more()
            size, _, self._rest = self._rest.partition(b"\r\n")
            length = int(size, 16)
            while len(self._rest) < length + 2:
                self._more()
            chunk, end = self._rest[:length], self._rest[length : length + 2]
            assert end == b"\r\n"
            self._rest = self._rest[length + 2 :]
            if not length:
                return
            yield chunk

    def rest(self, length: int) -> bytes:
        """A body whose length is known."""
        while len(self._rest) < length:
            self._more()
        return self._rest[:length]

    def close(self) -> None:
        self._sock.close()

    def _more(self) -> None:
        try:
            received = self._sock.recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            raise EOFError("the connection ended")
        self._rest += received
