"""The admin listener: a small HTTP server of its own, on the loop of the gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import structlog

from steelyard.admin.access import Access

if TYPE_CHECKING:
    from steelyard.admin.running import Running
    from steelyard.admin.server import Server

BACKLOG = 64


class AdminListener:
    """Serves the admin API of one running gateway."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._server: Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on (of interest when 0 was asked for)."""
        assert self._socket is not None, "the listener is not started"
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address cannot be had, ConfigError when it would be open to everyone.

        The API itself is loaded behind this (it takes longer than all the rest of the gateway): who connects before it
        is there waits a moment.
        """
        access = Access.of(os.environ, host)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._socket = bound(found[0][0], found[0][4])
        self._serving = loop.create_task(self._serve(access, self._socket), name="admin")

    async def _serve(self, access: Access, listener: socket.socket) -> None:
        try:
            server = self._server = await asyncio.to_thread(load, self._service, access)
            await server.serve(sockets=[listener])
        except Exception:
            # The gateway goes on without its admin.
            structlog.get_logger("steelyard.admin").exception("the admin listener stopped")

    async def close(self) -> None:
        """Stop listening, and close every connection. Answers under way get a moment."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        server = self._server
        if server is None or not server.started:
            serving.cancel()
        else:
            server.should_exit = True
        await asyncio.wait([serving])
        if server is not None:
            await server.abort_connections()
        if self._socket is not None:
            self._socket.close()


def bound(family: int, address: Any) -> socket.socket:
    """A listening socket. Raises OSError."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def load(service: Running, access: Access) -> Server:
    """The HTTP server with the API in it. The imports take a second; the loop goes on meanwhile."""
    from steelyard.admin.api import create_app
    from steelyard.admin.server import server

    return server(create_app(service, access))
