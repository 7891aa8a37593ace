"""Which engine answers at an address, and which models it serves. One row an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from steelyard.telemetry.fetch import Answer

Ask = Callable[[str, str, bytes], Awaitable[Answer | None]]
"""(method, path, body) -> the answer; None when none came."""

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "library": "ollama", "ollama": "ollama"}
"""`owned_by` in `GET /v1/models` -> engine."""

HEALTH_PATHS = {
    "vllm": "/health",
    "sglang": "/health",
    "llamacpp": "/health",
    "tgi": "/health",
    "openai": "/health",
    "generic": "/health",
    "auto": "/health",
    "ollama": "/",
    "triton": "/v2/health/ready",
    "sdwebui": "/internal/ping",
    "comfyui": "/prompt",
    "tfserving": "/",
}
"""What answers 200 when the engine is well. Of `/health` any answer below 500 counts: not every server has it."""


@dataclass(slots=True)
class Recognised:
    engine: str
    models: list[str] | None
    """All names by which it can be asked for them. None: it does not tell."""
    cards: dict[str, dict[str, object]] = field(default_factory=dict)
    """One for each model, under its proper name, with the server's own words as in `GET /v1/models`."""


class Unanswered(Exception):
    """A question got no answer, or only that the server cannot answer now: what it is cannot be said yet."""


async def recognise(ask: Ask, engine: str) -> Recognised:
    """Ask a healthy server what it is (unless `engine` is known) and which models it has.

    A page that is not there is an answer, and rules an engine out; silence and 5xx are none. Raises Unanswered.
    """
    if engine in ("auto", "vllm", "sglang", "llamacpp", "ollama", "openai", "tgi"):
        listed = await _openai_models(ask)
        if listed is not None:
            cards, owner = listed
            if engine != "auto":
                return Recognised(engine, list(cards), cards)
            if owner in OWNERS:
                return Recognised(OWNERS[owner], list(cards), cards)
            pictures = await _sdwebui_models(ask)
            if pictures is not None:
                return Recognised("sdwebui", sorted({*pictures.names, *cards}), {**pictures.cards, **cards})
            return Recognised("openai", list(cards), cards)
        if engine != "auto":
            return Recognised(engine, None)
    if engine in ("auto", "triton"):
        models = await _triton_models(ask)
        if models is not None or engine == "triton":
            return Recognised("triton", models)
    if engine in ("auto", "sdwebui"):
        pictures = await _sdwebui_models(ask)
        if pictures is not None:
            return Recognised("sdwebui", sorted(pictures.names), pictures.cards)
        if engine == "sdwebui":
            return Recognised("sdwebui", None)
    return Recognised("generic" if engine == "auto" else engine, None)


async def _openai_models(ask: Ask) -> tuple[dict[str, dict[str, object]], str] | None:
    document = await _json(ask, "GET", "/v1/models")
    data = document.get("data") if isinstance(document, dict) else None
    if data is None and isinstance(document, dict) and document.get("object") == "list":
        # Ollama before its first model is pulled.
        data = []
    if not isinstance(data, list):
        return None
    cards: dict[str, dict[str, object]] = {}
    owner = ""
    for card in data:
        if isinstance(card, dict) and isinstance(card.get("id"), str):
            cards[card["id"]] = card
            owner = owner or str(card.get("owned_by", ""))
    return cards, owner


@dataclass(slots=True)
class _Checkpoints:
    names: set[str]
    cards: dict[str, dict[str, object]]


async def _sdwebui_models(ask: Ask) -> _Checkpoints | None:
    document = await _json(ask, "GET", "/sdapi/v1/sd-models")
    if not isinstance(document, list):
        return None
    found = _Checkpoints(set(), {})
    for model in document:
        if isinstance(model, dict) and isinstance(model.get("model_name"), str):
            name = model["model_name"]
            found.names |= checkpoint_names(model)
            found.cards[name] = {"id": name, "object": "model", "created": 0, "owned_by": "sdwebui"}
    return found


def checkpoint_names(model: dict[str, object]) -> set[str]:
    """All that the web UI understands as this checkpoint in `sd_model_checkpoint`.

    `model_name`; the title, `name.safetensors [hash]`, which its own pages send; the file's name; the hash.
    """
    title, filename = model.get("title"), model.get("filename")
    names = {model.get("model_name"), title, model.get("hash"), model.get("sha256")}
    if isinstance(title, str):
        names.add(title.partition(" [")[0])
    if isinstance(filename, str):
        # It may run on Windows.
        names.add(filename.replace("\\", "/").rpartition("/")[2])
    return {name for name in names if isinstance(name, str) and name}


async def _triton_models(ask: Ask) -> list[str] | None:
    server = await _json(ask, "GET", "/v2")
    if not isinstance(server, dict) or "extensions" not in server:
        return None
    index = await _json(ask, "POST", "/v2/repository/index", b"{}")
    if not isinstance(index, list):
        return None
    ready = (m for m in index if isinstance(m, dict) and m.get("state", "READY") == "READY")
    return sorted({str(m["name"]) for m in ready if "name" in m})


async def _json(ask: Ask, method: str, path: str, body: bytes = b"") -> object:
    """What the answer says; None when there is no such page, or no JSON on it. Raises Unanswered."""
    answer = await ask(method, path, body)
    if answer is None:
        raise Unanswered(f"{method} {path}: no answer")
    if answer.status >= 500 and answer.status != 501:
        raise Unanswered(f"{method} {path} answered {answer.status}")
    if answer.status != 200:
        return None
    try:
        found: object = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found
