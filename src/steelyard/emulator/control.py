"""The control endpoints of an emulated node: faults and statistics. They work whatever is wrong with the node.

``GET|POST|DELETE /_emulator/faults`` and ``GET /_emulator/stats?log=100``; with ``?node=NAME`` any node of the fleet
answers for a sibling, which is how a crashed one is brought back.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from steelyard.emulator.exchange import Exchange
from steelyard.emulator.faults import FaultError, Faults, parse_faults

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

PREFIX = "/_emulator/"


def answer_control(node: EmulatedNode, exchange: Exchange) -> None:
    """Answer a request below PREFIX."""
    request = exchange.request
    name = request.query.get("node")
    target = node if name is None else node.sibling(name)
    if target is None:
        _answer(exchange, 404, {"error": f"no node {name!r} in this fleet"})
        return
    route = (request.method, request.path)
    if route == ("GET", "/_emulator/faults"):
        _answer(exchange, 200, target.faults.to_json())
    elif route == ("DELETE", "/_emulator/faults"):
        target.set_faults(Faults())
        _answer(exchange, 200, {})
    elif route == ("POST", "/_emulator/faults"):
        _post(target, exchange)
    elif route == ("GET", "/_emulator/stats"):
        _answer(exchange, 200, stats(target, request.query.get("log", "0")))
    else:
        known = "GET, POST, DELETE /_emulator/faults and GET /_emulator/stats"
        _answer(exchange, 404, {"error": f"no {request.method} {request.path} here; there are {known}"})


def stats(node: EmulatedNode, log: str = "0") -> dict[str, Any]:
    """Counters, memory, load and faults of a node; ``log``: how many of the last executions, too."""
    card = node.engine.card
    wanted = int(log) if log.isdigit() else 0
    executions = node.stats.log
    return {
        "name": node.name,
        "kind": node.profile.kind,
        "engine": node.profile.engine,
        "url": node.url,
        "now": node.clock.now(),
        "up": node.listening,
        "requests": node.stats.to_json(),
        "memory": {
            "total": card.total,
            "resident": card.resident,
            "allocated": card.allocated,
            "reserved": card.reserved,
            "peak": card.peak,
            "oom": card.oom_count,
        },
        "load": node.engine.load(),
        "busy_seconds": node.engine.busy_seconds(),
        "faults": node.faults.to_json(),
        "log": [each.to_json() for each in islice(executions, max(0, len(executions) - wanted), None)],
    }


def _post(target: EmulatedNode, exchange: Exchange) -> None:
    try:
        document = msgspec.json.decode(exchange.request.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _answer(exchange, 400, {"error": f'the body is not valid JSON ({error}); right would be {{"slow": 3.0}}'})
        return
    try:
        faults = parse_faults(document, target.faults)
    except FaultError as error:
        _answer(exchange, 400, {"error": str(error)})
        return
    # A crash resets every connection, this one too: it is answered first.
    if faults.crash:
        exchange.request.keep_alive = False
    _answer(exchange, 200, faults.to_json())
    target.set_faults(faults)


def _answer(exchange: Exchange, status: int, body: dict[str, Any]) -> None:
    exchange.answer(status, msgspec.json.encode(body))
