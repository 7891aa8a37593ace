"""The bytes of what is sent: status lines, and the chunked coding."""

from __future__ import annotations

from typing import Final

CACHED_LINES: Final = 1024
CACHED_REASON: Final = 64
"""Longest reason, in bytes, of a line that is kept ready."""
STATUS_LINES: Final[dict[tuple[int, bytes], bytes]] = {}
"""Ready status lines of the statuses that occur; bounded by CACHED_LINES, the reasons come from nodes."""


def status_line(status: int, reason: bytes) -> bytes:
    key = (status, reason)
    line = STATUS_LINES.get(key)
    if line is None:
        line = b"HTTP/1.1 %d %b\r\n" % (status, reason)
        if len(STATUS_LINES) < CACHED_LINES and len(reason) <= CACHED_REASON:
            STATUS_LINES[key] = line
    return line


REASONS: Final[dict[int, bytes]] = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}
"""Of the answers that the gateway itself gives."""


def bodiless(status: int) -> bool:
    """Whether an answer with this status never has a body (RFC 9110, 6.4.1)."""
    return status == 204 or status == 304 or status < 200


def chunk(data: bytes) -> bytes:
    """`data`, which is not empty, as one chunk of the chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
