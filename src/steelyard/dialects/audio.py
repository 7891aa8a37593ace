"""How long a recording is, from the start of the file and its size."""

from __future__ import annotations

from typing import Final

PCM_BYTES_PER_SECOND: Final = 32_000
"""16-bit mono at 16 kHz, what recognisers work with."""
MP3_BYTES_PER_SECOND: Final = 16_000
"""128 kbit/s, the usual rate of MP3, and of AAC in MP4; also for formats that are not known."""
OPUS_BYTES_PER_SECOND: Final = 4_000
"""32 kbit/s, usual for speech in Ogg and WebM."""
FEWEST_BYTES_PER_SECOND: Final = 500
"""No codec for speech that people upload goes below 4 kbit/s: a header that says so is wrong."""
LARGEST_DATA: Final = 0xFFFF_FF00
"""From here on, a size in a WAV header means: not known when the header was written."""


def seconds(start: bytes, size: int, filename: str = "") -> float:
    """Seconds of audio in a file of `size` bytes that begins with `start` (a few KB).

    Exact for WAV and FLAC, which say it at the start; elsewhere from the usual bit rate of the format. Never more than
    the size allows, whatever a header says.
    """
    if start.startswith(b"RIFF") and start[8:12] == b"WAVE":
        return _wav_seconds(start, size)
    if start.startswith(b"fLaC"):
        exact = _flac_seconds(start)
        return size / MP3_BYTES_PER_SECOND / 4 if exact is None else min(exact, size / FEWEST_BYTES_PER_SECOND)
    if start.startswith((b"OggS", b"\x1a\x45\xdf\xa3")):
        return size / OPUS_BYTES_PER_SECOND
    if filename.lower().endswith((".pcm", ".raw")):
        return size / PCM_BYTES_PER_SECOND
    return size / MP3_BYTES_PER_SECOND


def _wav_seconds(start: bytes, size: int) -> float:
    """The `data` chunk divided by the byte rate of the `fmt ` chunk."""
    rate = PCM_BYTES_PER_SECOND
    position = 12
    while position + 8 <= len(start):
        kind = start[position : position + 4]
        length = int.from_bytes(start[position + 4 : position + 8], "little")
        position += 8
        if kind == b"fmt " and position + 12 <= len(start):
            rate = max(FEWEST_BYTES_PER_SECOND, int.from_bytes(start[position + 8 : position + 12], "little"))
        if kind == b"data":
            there = size - position
            return (there if length == 0 or length >= LARGEST_DATA else min(length, there)) / rate
        position += length + length % 2
    return max(0, size - 44) / rate


def _flac_seconds(start: bytes) -> float | None:
    """Total samples divided by the sample rate, from STREAMINFO, which is the first block of every file."""
    if len(start) < 26 or start[4] & 0x7F != 0:
        return None
    packed = int.from_bytes(start[18:26], "big")  # 20 bits rate, 3 channels, 5 bits a sample, 36 total samples
    rate = packed >> 44
    samples = packed & ((1 << 36) - 1)
    return samples / rate if rate and samples else None
