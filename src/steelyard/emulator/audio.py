"""How long a recording is. Pure."""

from __future__ import annotations

import struct

# 16-bit mono at 16 kHz, what Whisper computes on: the guess for a file whose header tells nothing.
BYTES_PER_SECOND = 32_000


def audio_seconds(data: bytes) -> float:
    """Seconds from the WAV header, else bytes / 32,000."""
    return _wav_seconds(data) or len(data) / BYTES_PER_SECOND


def _wav_seconds(data: bytes) -> float | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    offset = 12
    rate = 0
    while offset + 8 <= len(data):
        kind = data[offset : offset + 4]
        (size,) = struct.unpack_from("<I", data, offset + 4)
        if kind == b"fmt " and offset + 20 <= len(data):
            (rate,) = struct.unpack_from("<I", data, offset + 16)
        elif kind == b"data":
            # A recorder that streams writes 0 or the maximum here, because it does not know the length yet.
            present = len(data) - offset - 8
            return min(size or present, present) / rate if rate else None
        offset += 8 + size + (size & 1)
    return None
