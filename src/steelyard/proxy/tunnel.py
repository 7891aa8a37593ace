"""A connection that speaks no HTTP any more: WebSocket, or whatever else client and node have agreed on.

Bytes pass as they come, both ways, each side as fast as the other one takes them. A side that ends its sending may
still be sent to. The lease stands as long as the tunnel does.
"""

from __future__ import annotations

import secrets
from typing import Final

from steelyard.proxy.client import Client
from steelyard.proxy.request import Request
from steelyard.proxy.sockets import probe
from steelyard.proxy.switched import Switched
from steelyard.proxy.upstream import NodeConnection
from steelyard.proxy.websocket import BAD_GATEWAY, GOING_AWAY, FrameScanner, close_frame

IDLE_SECONDS: Final = 3600.0
"""Without a byte either way. WebSockets are silent for long; HAProxy's documentation gives tunnels an hour, too. A peer
whose machine is gone is found sooner, by TCP's own probes."""
HALF_CLOSED_SECONDS: Final = 30.0
"""Without a byte, after one side has ended: what is still on its way comes sooner."""


class Tunnel(Switched):
    """Both directions of it."""

    def __init__(
        self, request: Request, client: Client, connection: NodeConnection, protocol: bytes, now: float
    ) -> None:
        self._request = request
        self._client = client
        self._connection = connection
        self._websocket = protocol.lower() == b"websocket"
        self._to_client = FrameScanner()
        self._to_node = FrameScanner()
        self.bytes_in = 0
        """From the client."""
        self.bytes_out = 0
        self._client_ended = False
        self._node_ended = False
        self._client_paused_at = 0.0
        """Since when the client does not read; 0.0 while it does."""
        self._heard_at = now
        self._over = False
        probe(connection.transport)

    # -- the client's side

    def from_client(self, data: bytes, now: float) -> None:
        self._heard_at = now
        self.bytes_in += len(data)
        if self._websocket:
            self._to_node.feed(data)
        self._connection.transport.write(data)

    def client_ended(self) -> None:
        """The client sends nothing more; it may still read."""
        self._client_ended = True
        if self._node_ended:
            self._end("ok")
        elif self._connection.transport.can_write_eof():
            self._connection.transport.write_eof()
        else:
            # TLS has no half of a connection.
            self._end("ok")

    def client_lost(self, broken: bool) -> None:
        """The client's connection is closed."""
        if broken and not (self._client_ended or self._to_client.closed):
            self._connection.abort()
            self._end("client_gone")
        else:
            self._end("ok")

    def client_paused(self, now: float) -> None:
        self._client_paused_at = now
        self._client.mark()
        self._connection.pause()

    def client_resumed(self, now: float) -> None:
        self._client_paused_at = 0.0
        self._heard_at = now
        self._connection.resume()

    # -- the node's side

    def from_node(self, data: bytes) -> None:
        self._heard_at = self._connection.upstream.clock()
        self.bytes_out += len(data)
        if self._websocket:
            self._to_client.feed(data)
        self._client.write(data)

    def node_ended(self) -> None:
        self._node_ended = True
        if self._client_ended:
            self._end("ok")
        elif self._websocket and not self._to_client.closed:
            self._break_off("node_broke", "the node ended the connection without a close frame", BAD_GATEWAY)
        elif not self._client.write_eof():
            self._end("ok")

    def node_lost(self, error: Exception | None) -> None:
        if self._over:
            return
        if error is None and (self._node_ended or self._client_ended):
            self._end("ok")
        else:
            self._break_off("node_broke", f"the node broke the connection: {error or 'closed'}", BAD_GATEWAY)

    def node_pause(self) -> None:
        self._client.pause_reading()

    def node_resume(self) -> None:
        self._client.resume_reading()

    # -- time, and the gateway's own end

    def check(self, now: float, stalled: float) -> None:
        """End it when nobody says anything, or the client has read nothing for `stalled` seconds."""
        silent = now - self._heard_at
        if self._client_paused_at:
            if now - self._client_paused_at > stalled:
                if self._client.takes():
                    self._client_paused_at = now
                    return
                self._client.abort()
                self._end("client_stalled", f"the client read nothing for {stalled:g} s")
        elif self._client_ended or self._node_ended:
            if silent > HALF_CLOSED_SECONDS:
                self._end("ok")
        elif silent > IDLE_SECONDS:
            self._break_off("client_timeout", f"no byte passed for {IDLE_SECONDS:g} s", GOING_AWAY)

    def cut(self, outcome: str, message: str) -> None:
        """The gateway ends it."""
        self._break_off(outcome, message, GOING_AWAY)

    # -- the end

    def _break_off(self, outcome: str, message: str, code: int) -> None:
        """End it so that nobody takes it for a regular end: with a close frame, where one may stand, or a reset."""
        transport = self._connection.transport
        told = False
        if self._websocket:
            if not transport.is_closing() and self._to_node.between_frames and not self._to_node.closed:
                transport.write(close_frame(GOING_AWAY, message, secrets.token_bytes(4)))
            if self._to_client.between_frames and not self._to_client.closed:
                self._client.write(close_frame(code, message))
                told = True
        if not told:
            self._client.close_abnormally(flush=False)
        self._end(outcome, message)

    def _end(self, outcome: str, message: str = "") -> None:
        if self._over:
            return
        self._over = True
        connection = self._connection
        connection.switched = None
        # What is written goes out first, if the node takes it.
        connection.transport.close()
        if connection.transport.get_write_buffer_size():
            connection.upstream.loop.call_later(HALF_CLOSED_SECONDS, connection.transport.abort)
        self._request.tunnel_ended(outcome, message)
