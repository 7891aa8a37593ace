"""Where clients connect."""

from __future__ import annotations

import asyncio
from typing import cast

from steelyard.proxy.gateway import Gateway
from steelyard.proxy.server import ClientConnection


async def listen(gateway: Gateway, host: str, port: int) -> asyncio.Server:
    """Start to accept clients. Raises OSError when the address is in use or not ours."""
    return await gateway.loop.create_server(
        lambda: cast(asyncio.Protocol, ClientConnection(gateway)), host, port, backlog=4096, reuse_address=True
    )
