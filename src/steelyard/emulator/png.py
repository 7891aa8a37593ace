"""Writes real, small PNG files. Pure."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache


@lru_cache(maxsize=256)
def picture(width: int, height: int, color: int) -> bytes:
    """A valid PNG of the full size in one colour (24-bit RGB): one bit a pixel, so a megapixel is some 150 bytes."""
    row = b"\x00" + bytes((width + 7) // 8)
    palette = struct.pack(">I", color & 0xFFFFFF)[1:]
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette),
            _chunk(b"IDAT", zlib.compress(row * height, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
