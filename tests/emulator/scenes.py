"""Running a scene: a fleet on free ports of the loopback, a client, and raw connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from steelyard.emulator import EmulatedFleet, EmulatedNode, NodeProfile

QUICK = 0.02  # fifty times quicker than real time


def new_client(base_url: str = "") -> httpx.AsyncClient:
    """A client that ignores proxies, and loads no certificates: that would take longer than most scenes."""
    return httpx.AsyncClient(base_url=base_url, timeout=20, trust_env=False, verify=False)


@asynccontextmanager
async def one_node(
    profile: NodeProfile, *, time_scale: float = QUICK, seed: int = 0
) -> AsyncIterator[tuple[EmulatedNode, httpx.AsyncClient]]:
    """A node and a client that talks to it."""
    async with EmulatedFleet([profile], time_scale=time_scale, seed=seed) as fleet:
        node = fleet.nodes[0]
        async with new_client(node.url) as client:
            yield node, client


class Raw:
    """A raw connection to a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, node: EmulatedNode) -> Raw:
        return cls(*await asyncio.open_connection(node.host, node.port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, path: str, body: bytes, *headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "host: node", f"content-length: {len(body)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        first, *lines = raw.decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def answer(self) -> tuple[int, bytes]:
        """One answer with a content length."""
        status, headers = await self.head()
        return status, await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), 10)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection; ConnectionResetError when it was reset."""
        return await asyncio.wait_for(self.reader.read(-1), 10)

    def close(self) -> None:
        self.writer.close()


async def until(condition: Callable[[], Any], what: str, limit: float = 10.0) -> None:
    """Wait for something that another task brings about."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        await asyncio.sleep(0.002)


async def silent(awaitable: Awaitable[Any], seconds: float = 0.1) -> asyncio.Future[Any]:
    """Assert that nothing comes for a while; gives back the still waiting future."""
    future = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait([future], timeout=seconds)
    assert not done, f"something came: {future}"
    return future
