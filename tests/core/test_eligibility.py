"""Hard filters: who speaks what, who serves what, and the reason given to people."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.core.eligibility import (
    CANCELS_ON_DISCONNECT,
    ENGINE_DIALECTS,
    base_model,
    objection,
    serves,
    serves_base,
    speaks,
)
from steelyard.core.node import Node, NodeSpec, State
from steelyard.core.work import Work


@pytest.mark.parametrize(
    ("engine", "dialect", "spoken"),
    [
        ("vllm", "openai", True),
        ("vllm", "anthropic", True),
        ("vllm", "triton", False),
        ("triton", "openai", False),
        ("sdwebui", "sdwebui", True),
        ("comfyui", "sdwebui", False),
        ("triton", "generic", True),
        ("generic", "openai", True),
        ("auto", "openai", True),
        ("made-up", "sdwebui", True),
    ],
)
def test_dialects(engine: str, dialect: str, spoken: bool) -> None:
    assert speaks(engine, dialect) is spoken


def test_engines_that_stop_at_a_disconnect_are_engines_that_are_known() -> None:
    assert set(ENGINE_DIALECTS) | {"generic"} >= CANCELS_ON_DISCONNECT
    assert not CANCELS_ON_DISCONNECT & {"triton", "sdwebui", "comfyui", "tfserving"}


def node_of(**spec: Any) -> Node:
    spec = {"engine": "vllm", "models": frozenset({"llama"})} | spec
    node = Node(NodeSpec("gpu-1", "http://gpu-1", **spec))
    node.state = State.READY
    return node


@pytest.mark.parametrize(("model", "base"), [("llama", None), ("llama:legal", "llama"), ("a:b:c", "a"), (":x", "")])
def test_an_adapter_names_its_base(model: str, base: str | None) -> None:
    assert base_model(model) == base


def test_who_serves_a_model() -> None:
    node, unknown = node_of(), node_of(models=None)
    assert serves(node, "llama")
    assert serves(node, None)
    assert not serves(node, "gemma")
    assert not serves(node, "llama:legal")
    assert serves(unknown, "gemma")
    assert serves_base(node, "llama:legal")
    assert not serves_base(node, "gemma:legal")
    assert not serves_base(node, "llama")
    assert not serves_base(node, None)
    assert not serves_base(unknown, "llama:legal")


@pytest.mark.parametrize(
    ("engine", "model", "served"),
    [
        ("ollama", "llama3", True),
        ("ollama", "llama3:latest", True),
        ("ollama", "llama3:8b", False),
        ("ollama", "qwen", True),
        ("ollama", "gemma", False),
        ("vllm", "llama3", False),
    ],
)
def test_ollama_serves_without_a_tag_what_it_lists_as_latest(engine: str, model: str, served: bool) -> None:
    assert serves(node_of(engine=engine, models=frozenset({"llama3:latest", "qwen"})), model) is served


REASONS = [
    ({}, Work("openai", "chat", "llama"), None),
    ({}, Work("openai", "chat", "llama:legal"), None),
    ({"engine": "triton"}, Work("openai", "chat", "llama"), "engine triton does not speak openai"),
    ({}, Work("openai", "chat", "gemma"), "does not serve model gemma"),
    ({"version": "v1"}, Work("openai", "chat", "llama", version="v2"), "version v1 is not v2"),
    ({}, Work("openai", "chat", "llama", version="v2"), "version none is not v2"),
    ({"version": "v2"}, Work("openai", "chat", "llama", version="v2"), None),
    ({"weight": 0}, Work("openai", "chat", "llama"), "weight 0"),
    ({"max_in_flight": 0}, Work("openai", "chat", "llama"), "0 of 0 in flight"),
    ({"gpu_memory": 10}, Work("openai", "chat", "llama"), "needs 18 bytes, 10 are free"),
]


@pytest.mark.parametrize(("spec", "work", "reason"), REASONS)
def test_the_reason_is_given_in_words_and_numbers(spec: dict[str, Any], work: Work, reason: str | None) -> None:
    assert objection(node_of(**spec), work, 18, True) == reason


def test_memory_is_no_reason_where_it_is_ignored() -> None:
    assert objection(node_of(gpu_memory=10), Work("openai", "chat", "llama"), 18, False) is None


def test_a_card_that_is_oversubscribed_has_nothing_free_rather_than_less() -> None:
    node = node_of(gpu_memory=10)
    node.free_memory = -5
    assert objection(node, Work("openai"), 18, True) == "needs 18 bytes, 0 are free"


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_node_that_is_not_ready(state: State) -> None:
    node = node_of()
    node.state = state
    assert objection(node, Work("openai"), 0, True) == f"state {state}"
