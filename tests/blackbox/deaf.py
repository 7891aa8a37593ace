"""A node whose port takes no connection: neither accepted nor refused, as when its process is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from tests.blackbox.fakenode import FakeNode


@contextlib.asynccontextmanager
async def deaf(node: FakeNode) -> AsyncIterator[None]:
    """Within, connections to the node stay unanswered. Its open ones are closed."""
    node.refuse()
    while node.open:
        await asyncio.sleep(0.005)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", node.port))
    listener.listen(0)
    # The line of connections that wait to be accepted holds one; from then on the system drops what comes.
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(("127.0.0.1", node.port))
        fillers.append(filler)
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for filler in fillers:
            filler.close()
        listener.close()
