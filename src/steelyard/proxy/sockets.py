"""What asyncio does not tell of a connection, and the system does."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

PROBE_AFTER: Final = 60
PROBE_EVERY: Final = 15
PROBES: Final = 4
"""TCP keep-alive, in seconds: a machine that is gone is noticed within two minutes."""


def not_taken(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not taken: those that wait here, and those in the system's buffer, which takes
    no more from here before a good part of it is empty."""
    waiting = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform == "win32":
        return waiting
    import fcntl
    import termios

    try:
        queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is closed
        return waiting
    return waiting + int.from_bytes(queued, sys.byteorder)


def probe(transport: asyncio.BaseTransport) -> None:
    """Let TCP find out when the other machine is gone."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
