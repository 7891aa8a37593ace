"""The kinds of values that a configuration holds: how each is read, what it is called and how it is written back.

Every kind reads what people write (24GB, 30s, 30%) and gives bytes, seconds and fractions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr, WithJsonSchema

from steelyard.config.addresses import Address, Network, parse_address, parse_network, parse_node_url
from steelyard.config.units import (
    format_duration,
    format_share,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of value is called in the reference, and how a value of it is written there."""

    name: str
    write: Callable[[Any], str] = str


def _unit(example: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}], "examples": [example]})


def _positive_duration(value: Any) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} must be longer than 0; write e.g. 30s")
    return seconds


_SHORTEST_INTERVAL = 0.01
"""Seconds. Asking a node more often than this is a load of its own, and learns nothing new."""


def _interval(value: Any) -> float:
    seconds = _positive_duration(value)
    if seconds < _SHORTEST_INTERVAL:
        raise ValueError(f"{value!r} is too short; the least is {format_duration(_SHORTEST_INTERVAL)}")
    return seconds


def _size_from(least: int, example: str) -> Callable[[Any], int]:
    """Reads a size that is never as small as what comes out when its unit is forgotten."""

    def read(value: Any) -> int:
        size = parse_size(value)
        if size <= 0:
            raise ValueError(f"{value!r} must be larger than 0; write e.g. {example}")
        if size < least:
            small = f"{value!r} is too small; the least is {format_size(least)}"
            bare = (
                ""
                if isinstance(value, str) and not value.strip().isdigit()
                else f" (a bare number is bytes: {example})"
            )
            raise ValueError(small + bare)
        return size

    return read


def _text(value: Any) -> Any:
    """Text that is not empty. A number is refused: 1.10 would have become 1.1 without anyone noticing."""
    if isinstance(value, bool | int | float):
        raise ValueError(f"{value!r} is a number or a truth value here; put quotes around it, as it is written")
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"{value!r} is empty")
    return value


def _name(value: Any) -> Any:
    """A name that travels in headers, labels and lines of a log: one line, and nothing that cannot be seen."""
    value = _text(value)
    if isinstance(value, str):
        wrong = next((character for character in value if not character.isprintable()), None)
        if wrong is not None:
            raise ValueError(f"{value!r} has the character {wrong!r} in it; a name has only printable ones")
        if value != value.strip():
            raise ValueError(f"{value!r} begins or ends with a space; write {value.strip()!r}")
    return value


def _log_target(value: Any) -> Any:
    """stderr, stdout, off, or the name of a file."""
    value = _text(value)
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{value!r} is not a file name; write stderr, stdout, off or a file")
    return value


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _header_name(value: Any) -> Any:
    if isinstance(value, str) and not _HEADER.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a header; write e.g. x-team")
    return value


_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[A-Za-z0-9*._-]+(:(\d{1,5}|\*))?|null")


def _origin(value: Any) -> Any:
    if isinstance(value, str) and not _ORIGIN.fullmatch(value):
        raise ValueError(f"{value!r} is not an origin; write e.g. https://app.example, without a path")
    return value


def _path_pattern(value: Any) -> Any:
    value = _text(value)
    if isinstance(value, str) and not value.startswith(("/", "*")):
        raise ValueError(f"{value!r} is not a path; write e.g. /v1/chat/completions or /sdapi/*")
    return value


_AFFINITY_KEY = re.compile(r"(header|cookie):[A-Za-z0-9!#$%&'*+.^_`|~-]+|body:\S+")


def _affinity_key(value: Any) -> Any:
    if isinstance(value, str) and not _AFFINITY_KEY.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a session key; write e.g. header:X-User-ID, cookie:USER_SESSION or body:user"
        )
    return value


_TOKEN = re.compile(r"[!-~]+")


def _credential(value: Any) -> Any:
    """A secret that can travel in a header: visible ASCII. It is never repeated in a message."""
    value = _text(value)
    if isinstance(value, str) and not _TOKEN.fullmatch(value):
        raise ValueError("a key has only visible ASCII characters, without spaces")
    return value


def _footprint_value(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value in ("", float("inf")):
        raise ValueError(f"{value!r} is not a size or a name; write e.g. width: 512")
    if not isinstance(value, str) and not value >= 0:
        raise ValueError(f"{value!r} is not a size; a size is 0 or more")
    return value


def _no_truth_value(value: Any) -> Any:
    """A YAML true is not the number 1."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number; write e.g. 4")
    return value


MessageSize = Annotated[int, BeforeValidator(_size_from(1000, "64MiB")), _unit("64MiB"), Kind("size", format_size)]
"""Bytes of messages, or of parts of them."""
DeviceMemory = Annotated[int, BeforeValidator(_size_from(10**6, "24GB")), _unit("24GB"), Kind("size", format_size)]
"""Bytes on a GPU."""
Duration = Annotated[float, BeforeValidator(parse_duration), _unit("30s"), Kind("duration", format_duration)]
"""Seconds."""
PositiveDuration = Annotated[
    float, BeforeValidator(_positive_duration), _unit("30s"), Kind("duration", format_duration)
]
Interval = Annotated[float, BeforeValidator(_interval), _unit("1s"), Kind("duration", format_duration)]
"""Seconds between two rounds of something."""
Share = Annotated[float, BeforeValidator(parse_share), _unit("30%"), Kind("share", format_share)]
"""A fraction, 0 to 1."""
Count = Annotated[int, Field(ge=0), BeforeValidator(_no_truth_value), Kind("number")]
PositiveCount = Annotated[int, Field(ge=1), BeforeValidator(_no_truth_value), Kind("number")]
Text = Annotated[str, BeforeValidator(_text), Kind("text")]
Name = Annotated[str, BeforeValidator(_name), Kind("text")]
"""Text that is shown in headers of answers, in metrics and in logs."""
Credential = Annotated[SecretStr, BeforeValidator(_credential), Kind("secret text", lambda _: "***")]
ListenAddress = Annotated[
    Address,
    BeforeValidator(parse_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["0.0.0.0:8080"]}),
    Kind("address"),
]
NodeLocation = Annotated[
    str,
    BeforeValidator(lambda value: str(parse_node_url(value))),
    WithJsonSchema({"type": "string", "examples": ["http://10.0.0.1:8000"]}),
    Kind("URL"),
]
TrustedNetwork = Annotated[
    Network,
    BeforeValidator(parse_network),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.0/8"]}),
    Kind("network"),
]
LogTarget = Annotated[str, BeforeValidator(_log_target), Kind("`stderr`, `stdout`, `off` or a file")]
HeaderName = Annotated[str, BeforeValidator(_header_name), Kind("name of a header")]
Origin = Annotated[str, BeforeValidator(_origin), Kind("origin")]
PathPattern = Annotated[str, BeforeValidator(_path_pattern), Kind("path pattern")]
AffinityKey = Annotated[str, BeforeValidator(_affinity_key), Kind("session key")]
FootprintValue = Annotated[int | float | str, BeforeValidator(_footprint_value), Kind("number or name")]
