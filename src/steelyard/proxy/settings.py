"""What the data path needs of the configuration: immutable, replaced as a whole on reload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from steelyard.core.quota import Quota
from steelyard.core.route import Route
from steelyard.proxy.cors import READ as CORS_HEADERS
from steelyard.proxy.cors import Cors
from steelyard.proxy.http1 import HeaderTable

READ_ALWAYS: Final = (
    b"content-type",
    b"content-encoding",
    b"cookie",
    b"idempotency-key",
    b"model-version",
    b"anthropic-version",
)
TAKEN_ALWAYS: Final = (
    b"host",
    b"expect",
    b"content-length",
    b"authorization",
    b"x-api-key",
    b"x-request-id",
    b"x-request-timeout",
    b"traceparent",
    b"tracestate",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"forwarded",
    b"sec-websocket-protocol",
)
STRIPPED_PREFIXES: Final = (b"x-steelyard-",)
"""Steering headers: read from trusted peers, never passed on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what clients may send and hold."""

    body: int = 64 << 20
    """Bytes of one request body: an uncompressed 4K image in base64 fits."""
    body_memory: int = 1 << 30
    """Bytes of all bodies that are held at the same time."""
    body_disk: int = 16 << 30
    """Bytes of all bodies that are held on disk at the same time."""
    body_directory: str = ""
    """Where; empty: the system's directory for temporary files."""
    headers: int = 64 << 10
    connections: int = 20000
    """Client connections."""
    keep_alive: float = 75.0
    """Seconds an idle client connection is kept; nginx's default."""
    header_wait: float = 30.0
    """Seconds from the first byte of a request to the end of its head."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of the data path."""

    routes: Sequence[Route]
    limits: Limits = field(default_factory=Limits)
    keys: Mapping[str, str] = field(default_factory=dict)
    """API key -> tenant; empty: open, one tenant."""
    trusted: Sequence[IPv4Network | IPv6Network] = ()
    """Peers whose X-Forwarded-* and steering headers, and PROXY headers, count."""
    trust_unix: bool = False
    """The same for whoever connects through a Unix socket."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """Tenant -> what it may use; `*` is for those that are not named."""
    cors: Cors | None = None
    response_headers: bool = True
    drain_delay: float = 5.0
    """Seconds to go on accepting after the signal: load balancers in front need to notice."""
    drain_grace: float = 600.0
    """Seconds that answers under way may take after that."""

    def header_table(self) -> HeaderTable:
        """Which request headers are read, and which do not go on as they are."""
        read = set(READ_ALWAYS)
        for route in self.routes:
            read.update(name.encode("latin-1") for name in route.match.headers)
            read.update(name.encode("latin-1") for kind, name in route.session_sources if kind == "header")
        if self.cors is not None:
            read.update(CORS_HEADERS)
        return HeaderTable(read - set(TAKEN_ALWAYS), TAKEN_ALWAYS, STRIPPED_PREFIXES)
