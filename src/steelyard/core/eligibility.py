"""Hard filters: which nodes may serve a Work at all, and why not."""

from __future__ import annotations

from typing import Final

from steelyard.core.node import Node, State
from steelyard.core.work import Work

ENGINE_DIALECTS: Final[dict[str, frozenset[str]]] = {
    "vllm": frozenset({"openai", "anthropic"}),
    "sglang": frozenset({"openai", "anthropic", "sglang"}),
    "llamacpp": frozenset({"openai", "anthropic", "llamacpp"}),
    "ollama": frozenset({"openai", "anthropic", "ollama"}),
    "tgi": frozenset({"openai", "tgi"}),
    "openai": frozenset({"openai", "anthropic"}),
    "triton": frozenset({"triton"}),
    "tfserving": frozenset({"tfserving"}),
    "sdwebui": frozenset({"sdwebui", "openai"}),
    "comfyui": frozenset({"comfyui"}),
}
"""What an engine speaks. `generic` (and an engine that nobody recognised) is asked everything; paths of no known
dialect go to every engine. Forks of the A1111 web UI answer OpenAI's image API too."""

CANCELS_ON_DISCONNECT: Final = frozenset({"vllm", "sglang", "llamacpp", "ollama", "tgi", "openai", "generic"})
"""Engines that stop working when the connection closes. The others go on, and their leases are orphaned."""


def speaks(engine: str, dialect: str) -> bool:
    """Whether an engine answers requests of a dialect."""
    if dialect == "generic":
        return True
    spoken = ENGINE_DIALECTS.get(engine)
    return spoken is None or dialect in spoken


def serves(node: Node, model: str | None) -> bool:
    """Whether the node has the model. A node whose models are unknown is asked for any.

    Ollama lists `llama3:latest` and serves it as `llama3` too.
    """
    models = node.models
    if model is None or models is None or model in models:
        return True
    return node.engine == "ollama" and latest(model) in models


def latest(model: str) -> str:
    """The name under which Ollama lists a model that is asked for without a tag."""
    return f"{model}:latest"


def base_model(model: str) -> str | None:
    """The base of a LoRA adapter that is asked for as SGLang has it, `base:adapter`; None for any other name."""
    base, colon, _ = model.partition(":")
    return base if colon else None


def serves_base(node: Node, model: str | None) -> bool:
    """Whether the node is known to have the base model of the adapter that is asked for."""
    return node.models is not None and model is not None and base_model(model) in node.models


def shortage(node: Node, memory: int, enforce_memory: bool) -> str | None:
    """What the node lacks now for a work that it may serve, in words and numbers; None when it fits."""
    if node.free_slots <= 0:
        return f"{node.in_flight} of {node.max_in_flight} in flight"
    if enforce_memory and memory > node.free_memory:
        return f"needs {memory} bytes, {max(node.free_memory, 0)} are free"
    return None


def objection(node: Node, work: Work, memory: int, enforce_memory: bool) -> str | None:
    """The first reason why the node cannot take the work now, in words and numbers; None when it can.

    `memory` is the footprint's, in bytes. For people: decisions do not use these words.
    """
    if not speaks(node.engine, work.dialect):
        return f"engine {node.engine} does not speak {work.dialect}"
    if not serves(node, work.model) and not serves_base(node, work.model):
        return f"does not serve model {work.model}"
    if work.version is not None and node.version != work.version:
        return f"version {node.version or 'none'} is not {work.version}"
    if node.state is not State.READY:
        return f"state {node.state}"
    if node.weight <= 0:
        return "weight 0"
    return shortage(node, memory, enforce_memory)
