"""A client connection that is being closed, and its client's last bytes: time is the test's."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from steelyard.config.build import settings
from steelyard.config.document import parse_document
from steelyard.config.load import validate
from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.proxy.access_log import AccessLog
from steelyard.proxy.closing import FLUSH_SECONDS
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.server import ClientConnection


class Pipe:
    """A transport whose other side takes as much as it is told."""

    def __init__(self) -> None:
        self.unsent = 0
        self.closing = self.aborted = False

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def closing() -> Any:
    """(connection, pipe, time) after an answer of 1,000 and some bytes that ends the connection."""
    config = validate(parse_document("nodes: [{url: a}]", "s.yaml", {}), "s.yaml")
    time = Time()
    loop = asyncio.new_event_loop()
    gateway = Gateway(Balancer(Fleet({}), Random(1)), settings(config), AccessLog(None), loop, clock=time)
    pipe = Pipe()
    connection = ClientConnection(gateway)
    connection.connection_made(pipe)  # type: ignore[arg-type]
    pipe.write(bytes(1000))
    connection.data_received(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert pipe.closing
    yield connection, pipe, time
    loop.close()


def test_who_takes_nothing_is_cut(closing: Any) -> None:
    connection, pipe, time = closing
    time.now = FLUSH_SECONDS - 0.1
    connection.check(time.now)
    assert not pipe.aborted
    time.now = FLUSH_SECONDS
    connection.check(time.now)
    assert pipe.aborted


def test_who_takes_something_has_as_long_again(closing: Any) -> None:
    connection, pipe, time = closing
    for _ in range(5):
        pipe.unsent -= 10
        time.now += FLUSH_SECONDS
        connection.check(time.now)
        assert not pipe.aborted
    time.now += FLUSH_SECONDS - 0.1
    connection.check(time.now)
    assert not pipe.aborted
    time.now += 0.1
    connection.check(time.now)
    assert pipe.aborted
