"""A server that does exactly what a test says, on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""(request line, writer): write whatever is to come."""


class Scripted:
    """What the server saw."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[str] = []
        self.open = 0


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    seen = Scripted()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.connections += 1
        seen.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line = head.split(b"\r\n")[0].decode()
                length = next((int(row[15:]) for row in head.split(b"\r\n") if row.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                seen.requests.append(line)
                await script(line, writer)
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            seen.open -= 1
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def whole(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
