"""Faults that can be switched on in an emulated node, and the strict reading of their JSON. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

HANGS = ("accept", "headers", "mid")
CUTS = ("fin", "rst")
METRICS = ("frozen", "missing")


class FaultError(ValueError):
    """The fault description is wrong; the text says where and what would be right."""


@dataclass(frozen=True)
class Stall:
    """With ``probability``, a request waits ``seconds`` (emulated) on the card before its work begins."""

    probability: float
    seconds: float


@dataclass(frozen=True)
class Status:
    """With ``probability``, a request is answered at once with the HTTP status ``code``."""

    code: int
    probability: float = 1.0


@dataclass(frozen=True)
class Faults:
    """What is wrong with a node now; the default is a healthy one. Seconds are emulated seconds."""

    slow: float = 1.0  # everything that computes takes this many times as long
    stall: Stall | None = None
    hang: Literal["accept", "headers", "mid"] | None = None
    hang_after: int = 1  # of hang "mid": events (chunks) that still come
    cut_after: int | None = None  # events (chunks) after which the connection ends; 0: before the first byte
    how: Literal["fin", "rst"] = "fin"
    status: Status | None = None
    oom: bool = False
    crash: bool = False
    recover_after: float | None = None  # of crash: the node listens again then
    metrics: Literal["frozen", "missing"] | None = None
    health: int | None = None  # status of the health endpoints

    def to_json(self) -> dict[str, Any]:
        """Only what differs from a healthy node, in the shape that parse_faults reads."""
        healthy = Faults()
        shown: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != getattr(healthy, field.name):
                shown[field.name] = vars(value) if isinstance(value, (Stall, Status)) else value
        return shown


def parse_faults(document: Any, current: Faults | None = None) -> Faults:
    """``document`` (parsed JSON) applied on top of ``current``; null takes one fault away. Raises FaultError."""
    base = current or Faults()
    if not isinstance(document, dict):
        raise FaultError(f'faults must be a JSON object such as {{"slow": 3.0}}, not {_kind(document)}')
    known = [field.name for field in fields(Faults)]
    changes: dict[str, Any] = {}
    healthy = Faults()
    for key, value in document.items():
        if key not in known:
            raise FaultError(_unknown(key, known))
        changes[key] = getattr(healthy, key) if value is None else _read(key, value)
    faults = replace(base, **changes)
    if document.get("how") is not None and faults.cut_after is None:
        raise FaultError('"how" belongs to "cut_after": {"cut_after": 3, "how": "rst"}')
    if document.get("hang_after") is not None and faults.hang != "mid":
        raise FaultError('"hang_after" belongs to "hang": {"hang": "mid", "hang_after": 3}')
    if document.get("recover_after") is not None and not faults.crash:
        raise FaultError('"recover_after" belongs to "crash": {"crash": true, "recover_after": 5}')
    return faults


def _read(key: str, value: Any) -> Any:
    if key == "slow":
        slow = _number(key, value)
        if slow <= 0:
            raise FaultError(f'"slow" must be above 0 (3.0 is three times as slow), not {value}')
        return slow
    if key == "stall":
        read = _object(key, value, {"probability": 1.0, "seconds": None})
        return Stall(_probability("stall.probability", read["probability"]), _seconds("stall.seconds", read["seconds"]))
    if key == "status":
        if isinstance(value, int) and not isinstance(value, bool):
            return Status(_code(key, value))
        read = _object(key, value, {"code": None, "probability": 1.0})
        return Status(_code("status.code", read["code"]), _probability("status.probability", read["probability"]))
    if key == "health":
        return _code(key, value)
    if key in ("cut_after", "hang_after"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FaultError(f'"{key}" must be a whole number of events, 0 or more, not {_kind(value)}')
        return value
    if key in ("oom", "crash"):
        if not isinstance(value, bool):
            raise FaultError(f'"{key}" must be true or false, not {_kind(value)}')
        return value
    if key == "recover_after":
        return _seconds(key, value)
    choices = {"hang": HANGS, "how": CUTS, "metrics": METRICS}[key]
    if value not in choices:
        raise FaultError(f'"{key}" must be one of {", ".join(choices)}, not {_kind(value)}')
    return value


def _object(key: str, value: Any, members: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FaultError(f'"{key}" must be an object with {" and ".join(members)}, not {_kind(value)}')
    for name in value:
        if name not in members:
            raise FaultError(_unknown(name, list(members), within=key))
    for name, default in members.items():
        if default is None and name not in value:
            raise FaultError(f'"{key}" lacks "{name}"')
    return {**members, **value}


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise FaultError(f'"{where}" must be a number, not {_kind(value)}')
    return float(value)


def _probability(where: str, value: Any) -> float:
    number = _number(where, value)
    if not 0 <= number <= 1:
        raise FaultError(f'"{where}" must be from 0 to 1, not {value}')
    return number


def _seconds(where: str, value: Any) -> float:
    number = _number(where, value)
    if number < 0:
        raise FaultError(f'"{where}" must be 0 or more seconds, not {value}')
    return number


def _code(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 200 <= value <= 599:
        raise FaultError(f'"{where}" must be an HTTP status from 200 to 599, not {_kind(value)}')
    return value


def _unknown(key: str, known: list[str], within: str = "") -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known)}"
    return f'unknown fault "{within + "." if within else ""}{key}"; {hint}'


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:40]}"'
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
