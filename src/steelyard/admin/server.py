"""uvicorn, as a guest on the gateway's loop: it takes no signals, says nothing, and holds few connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CLOSE_SECONDS = 1
"""How long an answer under way may take to leave when the server closes. Whole seconds, as uvicorn wants them."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection is kept without a complete answer on it, in seconds. Longer than the usual interval between two
scrapes; much longer than any answer takes to whoever reads it."""
CONNECTIONS = 48
"""Connections at once. The process keeps 64 file descriptors aside from those of the data path, and a few scrapers,
dashboards and people need no more."""


class Connection(HttpToolsProtocol):
    """A connection that knows how old it is."""

    since = 0.0
    """When the last answer was complete, or the connection made."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > CONNECTIONS:
            transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()


class Server(uvicorn.Server):
    """Started by `serve`, stopped by `should_exit`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals are the gateway's own business.
        yield

    @property
    def connections(self) -> list[Connection]:
        """The open ones."""
        return cast(list[Connection], list(self.server_state.connections))

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
            for connection in self.connections:
                if connection.since < oldest:
                    connection.transport.abort()
        return await super().on_tick(counter)

    async def abort_connections(self) -> None:
        """Cut those whose clients still read slowly, or never asked for anything, and what runs for them."""
        for connection in self.connections:
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def server(app: Any) -> Server:
    """A server for an ASGI app, to be given a listening socket."""
    return Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )
