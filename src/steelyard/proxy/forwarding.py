"""The header lines that a request gets on its way to a node: who asked, through whom, and under which id."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from steelyard.proxy.http1 import RequestHead
from steelyard.proxy.upstream import Upstream

REQUEST_ID_LENGTH: Final = 128


def request_lines(
    head: RequestHead,
    target: bytes,
    upstream: Upstream,
    forwarding: bytes,
    request_id: bytes,
    own_keys: bool,
    framing: bytes,
) -> bytes:
    """Request line and headers for a node.

    `target` is the head's, or the one with a served model's name; `forwarding` are the lines of `forwarding_lines`;
    `framing` says where the body ends. With `own_keys` the client's credential was the gateway's, and ends here.
    """
    read = head.read
    parts = [
        head.method.encode("ascii"),
        b" ",
        upstream.prefix if target != b"*" else b"",
        target,
        b" HTTP/1.1\r\n",
        upstream.host_line,
        *head.relay,
    ]
    if upstream.authorization_line:
        parts.append(upstream.authorization_line)
    elif not own_keys:
        if b"authorization" in read:
            parts += (b"Authorization: ", read[b"authorization"], b"\r\n")
        if b"x-api-key" in read:
            parts += (b"x-api-key: ", read[b"x-api-key"], b"\r\n")
    parts += (forwarding, b"x-request-id: ", request_id, b"\r\n")
    if b"traceparent" in read and valid_traceparent(read[b"traceparent"]):
        parts += (b"traceparent: ", read[b"traceparent"], b"\r\n")
        if b"tracestate" in read:
            parts += (b"tracestate: ", read[b"tracestate"], b"\r\n")
    if head.upgrade:
        parts += (b"Connection: Upgrade\r\nUpgrade: ", head.upgrade, b"\r\n")
        if b"sec-websocket-protocol" in read:
            protocols = read[b"sec-websocket-protocol"]
            if own_keys or upstream.authorization_line:
                protocols = without_credentials(protocols)
            if protocols:
                parts += (b"Sec-WebSocket-Protocol: ", protocols, b"\r\n")
    parts += (framing, b"\r\n")
    return b"".join(parts)


def forwarding_lines(peer: str, scheme: str, request: RequestHead, trusted: bool = False) -> bytes:
    """X-Forwarded-For, -Proto, -Host and Via: the peer is appended to what a trusted peer said, else stands alone."""
    read = request.read
    chain, proto = peer.encode("ascii"), scheme.encode("ascii")
    host = read.get(b"host", b"")
    if trusted:
        before = read.get(b"x-forwarded-for")
        if before:
            chain = before + b", " + chain
        proto = read.get(b"x-forwarded-proto") or proto
        host = read.get(b"x-forwarded-host") or host
    via = read.get(b"via")
    return b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n%bVia: %b1.%d steelyard\r\n" % (
        chain,
        proto,
        b"X-Forwarded-Host: %b\r\n" % host if host else b"",
        via + b", " if via else b"",
        request.minor,
    )


CREDENTIAL_PROTOCOL: Final = b"openai-insecure-api-key."
"""How a page in a browser, which can set no headers for a WebSocket, sends its API key."""


def credential_in_protocols(protocols: bytes) -> bytes | None:
    """The API key among the protocols that Sec-WebSocket-Protocol offers."""
    for protocol in protocols.split(b","):
        protocol = protocol.strip()
        if protocol.startswith(CREDENTIAL_PROTOCOL):
            return protocol[len(CREDENTIAL_PROTOCOL) :]
    return None


def without_credentials(protocols: bytes) -> bytes:
    """The protocols without an API key."""
    offered = (protocol.strip() for protocol in protocols.split(b","))
    return b", ".join([protocol for protocol in offered if not protocol.startswith(CREDENTIAL_PROTOCOL)])


def harmless(request_id: bytes) -> bool:
    """Whether a request id from a client may go into headers and logs as it is."""
    return 0 < len(request_id) <= REQUEST_ID_LENGTH and request_id.isascii() and request_id.decode().isprintable()


def valid_traceparent(value: bytes) -> bool:
    """Whether a traceparent header has the form of W3C Trace Context, version 00 or later."""
    parts = value.split(b"-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or parts[0] == b"ff":
        return False
    if parts[0] == b"00" and len(parts) != 4:
        return False
    if not all(part.islower() or part.isdigit() for part in parts[:4]):
        return False
    try:
        trace, span = int(parts[1], 16), int(parts[2], 16)
        int(parts[0] + parts[3], 16)
    except ValueError:
        return False
    return bool(trace and span)


def trace_id(value: bytes) -> str:
    """The trace id of a valid traceparent, else an empty text."""
    if not valid_traceparent(value):
        return ""
    return value.split(b"-")[1].decode("ascii")


def is_trusted(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether a peer's address lies in one of the networks."""
    if not networks:
        return False
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(parsed.version == network.version and parsed in network for network in networks)
