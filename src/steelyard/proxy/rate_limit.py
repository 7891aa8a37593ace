"""How answers tell a tenant what is left of its limits, in the headers that OpenAI's API has for it."""

from __future__ import annotations

from typing import Final

from steelyard.core.quota import MINUTE, Bucket, Use

NODES: Final = b"x-ratelimit-"
"""What nodes say of their own limits is replaced: they are the gateway's with them, not the client's."""


def rate_limit_lines(use: Use, now: float) -> bytes:
    """Header lines of an answer."""
    lines = b""
    for name, bucket in ((b"requests", use.requests), (b"tokens", use.tokens)):
        if bucket is not None:
            lines += _lines(name, bucket, now)
    return lines


def _lines(name: bytes, bucket: Bucket, now: float) -> bytes:
    left = max(0, int(bucket.level(now)))
    # Until it is full again, as OpenAI has it.
    full = (bucket.limit - bucket.level(now)) * MINUTE / bucket.limit
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %dms\r\n" % (
        name,
        bucket.limit,
        name,
        left,
        name,
        max(0, int(full * 1000)),
    )
