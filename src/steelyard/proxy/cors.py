"""Cross-origin requests of browsers (the Fetch standard, "CORS protocol"): who may ask, and what a page may read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from steelyard.proxy.http1 import RequestHead

EXPOSED: Final = (
    b"x-request-id, x-steelyard-node, x-steelyard-reason, x-steelyard-version, x-steelyard-queue-ms, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""Headers of answers that a page may read."""
METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]*").fullmatch
READ: Final = (b"origin", b"access-control-request-method", b"access-control-request-headers")
"""Request headers that are looked at."""
NODES: Final = b"access-control-"
"""What nodes say of this is replaced: two different answers are none for a browser."""


class Cors:
    """Whose pages may ask."""

    def __init__(self, origins: Sequence[str], credentials: bool, max_age: float) -> None:
        """`origins` such as `https://app.example`, with `*` for anything within a label, or `*` for all; `credentials`:
        cookies may be sent; `max_age`: seconds for which a browser may remember what it was allowed."""
        self._any = "*" in origins
        exact = [re.escape(origin.lower()).replace(r"\*", "[^./:]*") for origin in origins if origin != "*"]
        self._origin = re.compile("|".join(exact).encode() if exact else b"(?!)").fullmatch
        self._credentials = credentials
        self._max_age = int(max_age)

    def allows(self, origin: bytes) -> bool:
        return self._any or self._origin(origin.lower()) is not None

    def lines(self, origin: bytes) -> bytes:
        """Header lines of an answer to a request with this Origin."""
        if not self.allows(origin):
            return b"Vary: Origin\r\n"
        return b"%bAccess-Control-Expose-Headers: %b\r\n" % (self._allowed(origin), EXPOSED)

    def _allowed(self, origin: bytes) -> bytes:
        if self._any and not self._credentials:
            return b"Access-Control-Allow-Origin: *\r\n"
        lines = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin
        return lines + b"Access-Control-Allow-Credentials: true\r\n" if self._credentials else lines

    def preflight(self, head: RequestHead) -> bytes | None:
        """Header lines of the answer to a browser that asks whether it may ask; None when this is no such question,
        empty when it may not."""
        read = head.read
        origin = read.get(b"origin")
        if head.method != "OPTIONS" or origin is None or b"access-control-request-method" not in read:
            return None
        if not self.allows(origin):
            return b""
        wanted = read.get(b"access-control-request-headers", b"")
        return b"%bAccess-Control-Allow-Methods: %b\r\n%bAccess-Control-Max-Age: %d\r\n" % (
            self._allowed(origin),
            METHODS,
            b"Access-Control-Allow-Headers: %b\r\n" % wanted if wanted and _HEADERS(wanted) else b"",
            self._max_age,
        )
