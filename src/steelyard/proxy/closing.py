"""The end of a client's connection: in order, with its last bytes taken, or cut."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, cast

from steelyard.proxy.client import Client
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.sockets import not_taken

LINGER_SECONDS: Final = 2.0
"""After an answer that came before the request was whole: how long the rest is read and thrown away, so that the
client sees the answer and not a reset."""
FLUSH_SECONDS: Final = 30.0
"""How long the client of a connection that is being closed may take none of the last bytes; after that it is cut."""


class ClosingConnection(Client):
    """What a connection knows of its own end."""

    __slots__ = ("_abort_at", "_closing", "_gateway", "_transport", "_unsent")

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._closing = False
        """No further request is read."""
        self._abort_at = 0.0
        """When a connection that is being closed is cut, unless its client takes something until then."""
        self._unsent = 0
        """Bytes that it had not taken when it was looked at last."""

    def write_eof(self) -> bool:
        """Send nothing more, but go on reading. False where that cannot be."""
        if not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def close_abnormally(self, flush: bool) -> None:
        """End a connection in the middle of an answer. Without `flush` with a reset, which nobody takes for an end."""
        if flush:
            self._close_soon()
            return
        self._closing = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def abort(self) -> None:
        """Cut the connection; a request under way is given up."""
        self._closing = True
        self._transport.abort()

    def mark(self) -> None:
        """Remember how much of its answers the client has not taken."""
        self._unsent = not_taken(self._transport)

    def takes(self) -> bool:
        """Whether the client, slow as it may be, has taken something since this, or `mark`, was called last."""
        before = self._unsent
        self.mark()
        return self._unsent < before

    def _close_soon(self) -> None:
        """Close when the client has taken what is written, and cut it off when it does not."""
        self._closing = True
        self._abort_at = self._gateway.clock() + FLUSH_SECONDS
        self.mark()
        self._transport.close()

    def _linger(self) -> None:
        """Send nothing more, and let what the client still sends be read for a moment, so that it sees the answer."""
        self._closing = True
        self._abort_at = self._gateway.clock() + LINGER_SECONDS
        self.mark()
        self.write_eof()

    def _check_closing(self, now: float) -> None:
        """Cut it when its time is over, unless the client still takes its answer."""
        if now < self._abort_at:
            return
        if self.takes() and self._unsent:
            self._abort_at = now + FLUSH_SECONDS
        else:
            self._transport.abort()
