"""What the gateway answers itself on the data plane: its health, and the union of the nodes' models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import msgspec

from steelyard.core.refusal import Refusal
from steelyard.dialects import recognise
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.http1 import RequestHead
from steelyard.proxy.relay import plain_answer

MODELS: Final = "/v1/models"
MODEL_NAME: Final = 256
"""Characters of a model's name that are repeated in an error."""


@dataclass(slots=True)
class LocalAnswer:
    """An answer of the gateway's own."""

    status: int
    outcome: str
    request_id: bytes
    data: bytes
    """Head and body."""
    probe: bool = False
    """It told a load balancer in front that we live: worth no line in the access log."""


def local_answer(gateway: Gateway, head: RequestHead) -> LocalAnswer | None:
    """The answer when the request is for the gateway itself, else None."""
    path = head.path
    cors = gateway.settings.cors
    if cors is not None and head.method == "OPTIONS":
        lines = cors.preflight(head)
        if lines is not None:
            return _preflight(gateway, head, lines)
    if path == "/health":
        status = 503 if gateway.draining else 200
        body: object = {"status": "draining" if gateway.draining else "ok"}
        return _answer(gateway, head, status, "ok", body, probe=True)
    if head.method not in ("GET", "HEAD") or not (path == MODELS or path.startswith(MODELS + "/")):
        return None
    tenant = gateway.tenant(head.read)
    if isinstance(tenant, Refusal):
        return _refusal(gateway, head, tenant)
    cards = model_cards(gateway)
    # Names with a slash in them may come quoted.
    name = unquote(path[len(MODELS) + 1 :])
    if not name:
        return _answer(gateway, head, 200, "ok", _listing(list(cards.values()), b"anthropic-version" in head.read))
    if name not in cards:
        message = f"the model {name[:MODEL_NAME]!r} does not exist; GET {MODELS} lists what there is"
        return _refusal(gateway, head, Refusal("unknown_model", message))
    return _answer(gateway, head, 200, "ok", cards[name])


def model_cards(gateway: Gateway) -> dict[str, dict[str, object]]:
    """Every model that a node which is not gone serves, by name, aliases too; a node's own words where it has any."""
    fleet = gateway.balancer.fleet
    cards: dict[str, dict[str, object]] = {}
    for model, nodes in sorted(fleet.models().items()):
        card: dict[str, object] = {"id": model, "object": "model", "created": 0, "owned_by": "steelyard"}
        listed = False
        for node in nodes:
            own = gateway.upstream(node).model_cards
            if model in own:
                card.update(own[model])
                listed = True
                break
            # A node may answer to more names than it lists, as A1111 does to a checkpoint's hash and file name.
            listed = listed or not own or model in (node.spec.models or ())
        if listed:
            cards[model] = card
    for alias, model in fleet.aliases.items():
        if model in cards:
            cards[alias] = {**cards[model], "id": alias, "root": model}
    return cards


def _preflight(gateway: Gateway, head: RequestHead, lines: bytes) -> LocalAnswer:
    """The answer to a browser that asks whether a page may ask; it needs no key, since it shows none."""
    if not lines:
        origin = head.read[b"origin"].decode("latin-1")
        return _refusal(gateway, head, Refusal("forbidden", f"pages of {origin[:MODEL_NAME]} may not ask here"))
    request_id = _id(gateway, head)
    closing = gateway.draining or head.has_body or not head.keep_alive
    end = b"Connection: close\r\n\r\n" if closing else b"\r\n"
    data = b"HTTP/1.1 204 No Content\r\n%bx-request-id: %b\r\n%b" % (lines, request_id, end)
    return LocalAnswer(204, "ok", request_id, data)


def _listing(cards: list[dict[str, object]], anthropic: bool) -> dict[str, object]:
    if not anthropic:
        return {"object": "list", "data": cards}
    ids = [str(card["id"]) for card in cards]
    data = [{"type": "model", "id": i, "display_name": i, "created_at": "1970-01-01T00:00:00Z"} for i in ids]
    return {
        "data": data,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


def _answer(
    gateway: Gateway, head: RequestHead, status: int, outcome: str, body: object, probe: bool = False
) -> LocalAnswer:
    return _written(gateway, head, status, outcome, _id(gateway, head), msgspec.json.encode(body), probe)


def _refusal(gateway: Gateway, head: RequestHead, refusal: Refusal) -> LocalAnswer:
    request_id = _id(gateway, head)
    operation = recognise(head.method, head.path)
    body = operation.error(refusal.status, refusal.code, refusal.message, request_id.decode("latin-1"))
    return _written(gateway, head, refusal.status, refusal.code, request_id, body, False)


def _id(gateway: Gateway, head: RequestHead) -> bytes:
    return gateway.request_id(head.read.get(b"x-request-id"))


def _written(
    gateway: Gateway, head: RequestHead, status: int, outcome: str, request_id: bytes, body: bytes, probe: bool
) -> LocalAnswer:
    lines = b"x-request-id: %b\r\n%b" % (request_id, gateway.cors_lines(head.read))
    data = plain_answer(status, body, b"application/json", lines, head, gateway.draining or head.has_body)
    return LocalAnswer(status, outcome, request_id, data, probe)
