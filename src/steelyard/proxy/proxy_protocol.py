"""The PROXY protocol, version 2: how a balancer that does not read HTTP says who its client is.

Facts: HAProxy's `proxy-protocol.txt`, sections 2.2 and 3. Its first bytes are no HTTP and no TLS, so that a connection
with such a header can be told from one without.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Final

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
HEAD: Final = 16
"""Bytes of signature, version and command, family, and length."""
LONGEST: Final = 4096
"""Bytes of addresses and further fields: the addresses take at most 216."""
TCP4: Final = 0x11
TCP6: Final = 0x21


class ProxyHeader:
    """What was found at the start of a connection."""

    __slots__ = ("length", "source")

    def __init__(self, length: int, source: str) -> None:
        self.length = length
        """Bytes of the header; 0 when there is none."""
        self.source = source
        """The client's address; empty when the header names none (a health check of the balancer)."""


NO_HEADER: Final = ProxyHeader(0, "")


def missing(data: bytes) -> int:
    """Bytes of a header that are still to come at least, when `data` is its start."""
    if len(data) < HEAD:
        return HEAD - len(data)
    return HEAD + int.from_bytes(data[14:16], "big") - len(data)


def proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None when more bytes are needed to tell.

    Raises ValueError for a header that makes no sense.
    """
    start = data[: len(SIGNATURE)]
    if start != SIGNATURE[: len(start)]:
        return NO_HEADER
    if len(data) < HEAD:
        return None
    version, command = data[12] >> 4, data[12] & 15
    family = data[13]
    size = int.from_bytes(data[14:16], "big")
    if version != 2 or command > 1:
        raise ValueError(f"PROXY protocol version {version}, command {command}: only version 2 is understood")
    if size > LONGEST:
        raise ValueError(f"a PROXY header of {size} bytes is longer than {LONGEST}")
    if len(data) < HEAD + size:
        return None
    length = HEAD + size
    if command == 0:
        return ProxyHeader(length, "")
    if family == TCP4 and size >= 12:
        return ProxyHeader(length, str(IPv4Address(data[16:20])))
    if family == TCP6 and size >= 36:
        address = IPv6Address(data[16:32])
        return ProxyHeader(length, str(address.ipv4_mapped or address))
    if family in (TCP4, TCP6):
        raise ValueError(f"a PROXY header of {size} bytes is too short for its addresses")
    # Unix sockets, datagrams, and what is not specified: no address that would say anything here.
    return ProxyHeader(length, "")
