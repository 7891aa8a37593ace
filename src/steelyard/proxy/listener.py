"""Where clients connect: TCP or a Unix socket, with TLS or without."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from contextlib import suppress
from typing import Final, cast

from steelyard.proxy.gateway import Gateway
from steelyard.proxy.proxy_protocol import SIGNATURE, missing, proxy_header
from steelyard.proxy.server import ClientConnection

BACKLOG: Final = 4096
"""Connections that the system completes before they are accepted: a reload of many browsers at once fits."""
PEEK_SECONDS: Final = 0.01
"""Between two looks at a PROXY header that is not whole: its bytes come in one packet nearly always."""
PAUSE_SECONDS: Final = 0.1
"""Without a descriptor for another connection: how long none is accepted."""
SOCKET_MODE: Final = 0o660
"""Of a Unix socket: who may use it is a matter of its group."""


class Listener:
    """Accepts clients, and hands each to a ClientConnection."""

    def __init__(self, gateway: Gateway, tls: ssl.SSLContext | None) -> None:
        self._gateway = gateway
        self.tls = tls
        """For the connections to come."""
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._path: str | None = None
        self._arriving: set[asyncio.Task[None]] = set()
        """Connections before their TLS is agreed on."""
        self._resume: asyncio.TimerHandle | None = None
        self.port = 0
        """0 for a Unix socket."""

    @property
    def arriving(self) -> int:
        """Connections whose TLS is not agreed on yet."""
        return len(self._arriving)

    async def start(self, host: str, port: int) -> None:
        """Start to accept on a TCP port. Raises OSError when the address is in use or not ours."""
        loop = self._gateway.loop
        if self.tls is None:
            self._server = await loop.create_server(self._protocol, host, port, backlog=BACKLOG, reuse_address=True)
            self.port = self._server.sockets[0].getsockname()[1]
            return
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        self._accept_on(sock)
        self.port = sock.getsockname()[1]

    async def start_unix(self, path: str) -> None:
        """Start to accept on a Unix socket. Raises OSError when it cannot be made.

        One that nobody listens on is replaced.
        """
        remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            os.chmod(path, SOCKET_MODE)
        except OSError:
            sock.close()
            raise
        self._path = path
        if self.tls is not None:
            self._accept_on(sock)
            return
        self._server = await self._gateway.loop.create_unix_server(self._protocol, sock=sock, backlog=BACKLOG)

    def close(self) -> None:
        """Accept nobody any more. Connections that are made go on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._socket is not None:
            self._gateway.loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in self._arriving:
            task.cancel()
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self._path = None

    def _protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, ClientConnection(self._gateway))

    # -- with TLS: a PROXY header comes before it

    def _accept_on(self, sock: socket.socket) -> None:
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._socket = sock
        self._gateway.loop.add_reader(sock, self._accept)

    def _accept(self) -> None:
        gateway = self._gateway
        listening = self._socket
        if listening is None:
            return
        while True:
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if gateway.out_of_descriptors(error):
                    gateway.loop.remove_reader(listening)
                    self._resume = gateway.loop.call_later(PAUSE_SECONDS, self._go_on)
                    return
                raise
            if len(gateway.clients) + len(self._arriving) >= gateway.connection_limit:
                # Without TLS there is no way to tell it why.
                gateway.accounting.counters.connections_refused += 1
                sock.close()
                continue
            sock.setblocking(False)
            task = gateway.loop.create_task(self._arrive(sock, address))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _go_on(self) -> None:
        self._resume = None
        if self._socket is not None:
            self._gateway.loop.add_reader(self._socket, self._accept)

    async def _arrive(self, sock: socket.socket, address: object) -> None:
        gateway = self._gateway
        wait = gateway.settings.limits.header_wait
        peer = str(address[0]) if isinstance(address, tuple) else ""
        try:
            if gateway.trusts(peer):
                async with asyncio.timeout(wait):
                    peer = await self._source(sock) or peer
            await gateway.loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, ClientConnection(gateway, peer)),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=wait,
            )
        except (OSError, ValueError, TimeoutError):
            # No TLS, not ours, or nobody there any more: there is nobody who could be told.
            gateway.accounting.counters.bad_requests += 1
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def _source(self, sock: socket.socket) -> str:
        """The client in the PROXY header of a connection, which is taken off; empty when there is none, or it names
        nobody. Raises ValueError, OSError."""
        loop = self._gateway.loop
        start = b""
        while len(start) < len(SIGNATURE):
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(sock, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(sock)
            start = sock.recv(len(SIGNATURE), socket.MSG_PEEK)
            if not start or start != SIGNATURE[: len(start)]:
                # Nothing, or TLS: it stays where it is.
                return ""
            if len(start) < len(SIGNATURE):
                await asyncio.sleep(PEEK_SECONDS)
        data = b""
        while (header := proxy_header(data)) is None:
            more = await loop.sock_recv(sock, missing(data))
            if not more:
                raise ConnectionResetError("the balancer has gone")
            data += more
        return header.source


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def remove_stale(path: str) -> None:
    """Remove a Unix socket that a process left behind. Raises OSError when it is in use, or no socket."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "the file exists, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "address already in use")
