"""Sizes, durations and shares as people write them.

Inside Steelyard everything is in bytes, seconds and fractions; these functions are the only way in.
Decimal and binary units are two different things (24GB is 24,000,000,000 bytes, 24GiB is 25,769,803,776), and a
GPU's data sheet means the one while its driver means the other, so both are accepted and neither is guessed.
"""

from __future__ import annotations

import math
import re

# Units are matched without regard to case: nobody means millibits by "24gb".
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

LONGEST_NUMBER = 40
"""Digits: more are a mistake, and slow to calculate with."""
_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_SIZE = re.compile(_NUMBER + r"\s*([a-z]*)", re.ASCII | re.IGNORECASE)
# A duration may be written in parts, largest first or not: "1m30s".
_DURATION = re.compile(rf"(?:{_NUMBER}\s*(?:ms|s|m|h)\s*)+", re.ASCII)
_DURATION_PART = re.compile(_NUMBER + r"\s*(ms|s|m|h)", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_PERCENT = re.compile(_NUMBER + r"\s*%", re.ASCII)


def parse_size(value: str | int | float) -> int:
    """Bytes in ``value``: '24GB', '24GiB', '512 MiB' or a bare number of bytes.

    Raises ValueError, naming the value and the right forms.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        unit = match.group(2).lower() if match else ""
        if match and (not unit or unit in _BYTES):
            size = _whole(match.group(1), _BYTES.get(unit, 1))
            if size is not None:
                return size
    elif _is_number(value):
        size = _whole(str(value), 1) if isinstance(value, int) else (int(value) if value == int(value) else None)
        if size is not None:
            return size
    raise ValueError(f"{value!r} is not a size; write e.g. 24GB or 24GiB (a bare number is whole bytes)")


def parse_duration(value: str | int | float) -> float:
    """Seconds in ``value``: '250ms', '30s', '30m', '1h', '1m30s' or a bare number of seconds.

    Raises ValueError, naming the value and the right forms.
    """
    if isinstance(value, str):
        text = value.strip()
        seconds = math.inf
        if _PLAIN.fullmatch(text):
            seconds = float(text)
        elif _DURATION.fullmatch(text):
            seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
        if math.isfinite(seconds):
            return seconds
    elif _is_number(value):
        return float(value)
    raise ValueError(f"{value!r} is not a duration; write e.g. 250ms, 30s, 5m or 1h (a bare number is seconds)")


def parse_share(value: str | int | float) -> float:
    """The fraction (0 to 1) in ``value``: '30%' or 0.3.

    A bare number above 1 is refused: 30 is far more likely a forgotten percent sign than three thousand percent.
    Raises ValueError, naming the value and the right forms.
    """
    share: float | None = None
    if isinstance(value, str):
        text = value.strip()
        if _PERCENT.fullmatch(text):
            share = float(text.rstrip("%")) / 100
        elif _PLAIN.fullmatch(text):
            share = float(text)
    elif _is_number(value):
        share = float(value)
    if share is None or share > 1:
        raise ValueError(f"{value!r} is not a share; write e.g. 30% or 0.3 (at most 100% or 1)")
    return share


def format_size(size: int) -> str:
    """``size`` bytes in the largest unit that writes them exactly, as parse_size reads them: 24000000000 -> 24GB."""
    if size == 0:
        return "0"
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
        factor = _BYTES[unit.lower()]
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def format_duration(seconds: float) -> str:
    """``seconds`` in the largest unit that writes them exactly, as parse_duration reads them: 1800.0 -> 30m."""
    if seconds == 0:
        return "0s"
    for unit, factor in (("h", 3600), ("m", 60)):
        if seconds % factor == 0:
            return f"{int(seconds // factor)}{unit}"
    milliseconds = round(seconds * 1000)
    if seconds < 1 and milliseconds * 0.001 == seconds:
        return f"{milliseconds}ms"
    return f"{seconds:.17g}s" if float(f"{seconds:.15g}") != seconds else f"{seconds:.15g}s"


def format_share(share: float) -> str:
    """``share`` as a percentage: 0.3 -> 30%."""
    return f"{share * 100:.12g}%"


def _is_number(value: object) -> bool:
    """A finite, non-negative number; a YAML 'yes' (a bool) is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _whole(number: str, factor: int) -> int | None:
    """``number`` x ``factor`` exactly, or None where that is not a whole number of bytes (1.5 bytes, 0.3KiB)."""
    if len(number) > LONGEST_NUMBER:
        return None
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    product: int = int((whole or "0") + fraction) * factor
    # "1.1GiB" is not whole by a fraction of a byte; nobody minds. "1.5" bytes is a mistake.
    if product % scale and factor == 1:
        return None
    return product // scale
