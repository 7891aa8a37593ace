"""HTTP/1.1 server protocol of the emulated nodes: asyncio callbacks and llhttp, no task and no framework.

A connection serves one request at a time; pipelined ones wait their turn.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol, cast
from urllib.parse import parse_qsl, unquote

import httptools

from steelyard.emulator.exchange import REASONS, Exchange, Request

MAX_BODY = 64 * 1024 * 1024  # Triton's default limit; none of the engines takes more without a flag
MAX_PIPELINED = 16  # requests that may wait on one connection before it is no longer read


class App(Protocol):
    """What a connection needs from its node."""

    connections: set[HttpConnection]

    def hears(self, data: bytes) -> bool:
        """False: the node does not read a request that begins with ``data`` (hang before accept)."""

    def is_control(self, target: bytes) -> bool:
        """True: a request for this target is read whatever is wrong with the node."""

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_app",
        "_body",
        "_body_size",
        "_close_after",
        "_control",
        "_exchange",
        "_parser",
        "_request",
        "_starting",
        "_target",
        "_transport",
        "_unread",
        "_waiting",
    )

    def __init__(self, app: App) -> None:
        self._app = app
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._exchange: Exchange | None = None
        self._waiting: deque[Request] = deque()
        self._unread: list[bytes] = []  # what came while the node was not reading
        self._close_after = False
        self._control = False  # in the middle of a control request
        self._starting = False

    # -- transport ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are not of asyncio's class
        self._app.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._app.connections.discard(self)
        self._transport = None
        self._waiting.clear()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.gone()

    def eof_received(self) -> None:
        """A half-closed client counts as gone, as in uvicorn: None closes the transport."""

    def data_received(self, data: bytes) -> None:
        if self._unread or not (self._control or self._app.hears(data)):
            self._unread.append(data)
            if self._transport is not None:
                self._transport.pause_reading()
            return
        self._feed(data)

    def hear_again(self) -> None:
        """The node reads again: go on with what came meanwhile."""
        unread, self._unread = self._unread, []
        if unread and self._transport is not None:
            self._transport.resume_reading()
            self._feed(b"".join(unread))

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def drop(self, how: str) -> None:
        """End the connection: ``fin`` after what was written, ``rst`` with a reset."""
        transport = self._transport
        if transport is None:
            return
        if how == "rst":
            raw = transport.get_extra_info("socket")
            # Linger 0 makes the close a reset; loopback has delivered what was written by now.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()

    def crash(self, how: str) -> None:
        """The node stops serving; an open exchange is cut."""
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.gone("cut")
        if how == "fin" or self._transport is None or not self._transport.is_closing():
            self.drop(how)

    def exchange_sent(self, keep_alive: bool) -> None:
        self._exchange = None
        if self._transport is None:
            return
        if not keep_alive or (self._close_after and not self._waiting):
            self._transport.close()
        elif self._waiting and not self._starting:
            self._start_waiting()

    # -- parsing -----------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # None of the emulated engines upgrades these paths: the request is answered as plain HTTP, then the end.
            self._close_after = True
        except httptools.HttpParserError as error:
            self._refuse(400, f"bad request: {error}")

    def _refuse(self, status: int, reason: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            body = reason.encode()
            self._transport.write(
                b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
                % (status, REASONS[status], len(body), body)
            )
            self._transport.close()

    def on_message_begin(self) -> None:
        self._request = Request()
        self._target = b""
        self._body = []
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._control = self._app.is_control(self._target)

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers = self._request.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        if self._body_size > MAX_BODY:
            self._body = []
            self._refuse(413, f"the body is larger than {MAX_BODY} bytes")
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        self._control = False
        request = self._request
        path, _, query = self._target.decode("latin-1").partition("?")
        request.method = self._parser.get_method().decode()
        request.path = unquote(path)
        if query:
            request.query = dict(parse_qsl(query, keep_blank_values=True))
        request.http_1_0 = self._parser.get_http_version() == "1.0"
        request.keep_alive = self._parser.should_keep_alive()
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if self._transport is None or self._transport.is_closing():
            return
        self._waiting.append(request)
        if len(self._waiting) > MAX_PIPELINED:
            self._transport.pause_reading()
        if self._exchange is None and not self._starting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        # A loop and not a recursion: an answer that is sent at once makes room for the next pipelined request.
        self._starting = True
        while self._waiting and self._exchange is None and self._transport is not None:
            request = self._waiting.popleft()
            if len(self._waiting) == MAX_PIPELINED and not self._unread:
                self._transport.resume_reading()
            exchange = self._exchange = Exchange(self, request)
            self._app.handle(exchange)
        self._starting = False
