"""What a server is, from its answers; and when that cannot be said yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from steelyard.telemetry.fetch import Answer
from steelyard.telemetry.recognise import Recognised, Unanswered, checkpoint_names, recognise
from tests.telemetry.fleetlab import listing, said

CHECKPOINT = {
    "title": "photo/real-v2.safetensors [6ce0161689]",
    "model_name": "photo_real-v2",
    "hash": "6ce0161689",
    "sha256": "6ce0161689b3853acaa03779ec93eafe75a02f4ced659bee03f50797806fa2fa",
    "filename": "/models/Stable-diffusion/photo/real-v2.safetensors",
}
TRITON = {
    "/v2": said({"name": "triton", "extensions": []}),
    "/v2/repository/index": said([{"name": "resnet", "state": "READY"}, {"name": "bert", "state": "UNAVAILABLE"}]),
}


def recognised(pages: dict[str, Answer | None], engine: str = "auto") -> Recognised:
    async def ask(method: str, path: str, body: bytes) -> Answer | None:
        return pages.get(path, Answer(404, b""))

    return asyncio.run(recognise(ask, engine))


@pytest.mark.parametrize(
    ("pages", "engine", "models"),
    [
        ({"/v1/models": listing("m", owner="vllm")}, "vllm", {"m"}),
        ({"/v1/models": listing("m", owner="sglang")}, "sglang", {"m"}),
        ({"/v1/models": listing("m", owner="llamacpp")}, "llamacpp", {"m"}),
        ({"/v1/models": listing("llama3:latest", owner="library")}, "ollama", {"llama3:latest"}),
        ({"/v1/models": listing("m", owner="somebody")}, "openai", {"m"}),
        ({"/v1/models": said({"object": "list", "data": None})}, "openai", set()),
        (TRITON, "triton", {"resnet"}),
        ({"/sdapi/v1/sd-models": said([{"model_name": "sd"}])}, "sdwebui", {"sd"}),
        ({"/v1/models": listing("sd", owner="x"), "/sdapi/v1/sd-models": said([])}, "sdwebui", {"sd"}),
        ({}, "generic", None),
        ({"/v1/models": Answer(401, b"")}, "generic", None),
        ({"/v1/models": Answer(501, b"")}, "generic", None),
        ({"/v1/models": Answer(200, b"<html>")}, "generic", None),
    ],
)
def test_what_answers_like_this_is_that(pages: dict[str, Answer | None], engine: str, models: set[str] | None) -> None:
    found = recognised(pages)
    assert found.engine == engine
    assert (None if found.models is None else set(found.models)) == models


@pytest.mark.parametrize("path", ["/v1/models", "/v2", "/v2/repository/index", "/sdapi/v1/sd-models"])
@pytest.mark.parametrize("answer", [None, Answer(500, b""), Answer(502, b""), Answer(503, b"")])
def test_no_answer_rules_nothing_out(path: str, answer: Answer | None) -> None:
    pages: dict[str, Answer | None] = dict(TRITON) if path == "/v2/repository/index" else {}
    with pytest.raises(Unanswered, match=path):
        recognised({**pages, path: answer})


def test_a_checkpoint_is_found_by_every_name_that_the_web_ui_understands_and_listed_once() -> None:
    found = recognised({"/sdapi/v1/sd-models": said([CHECKPOINT])})
    assert set(found.models or ()) >= {
        "photo_real-v2",
        "photo/real-v2.safetensors [6ce0161689]",
        "real-v2.safetensors",
        "6ce0161689",
    }
    assert list(found.cards) == ["photo_real-v2"]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"model_name": "a", "title": "a", "hash": None, "filename": None}, {"a"}),
        ({"model_name": "a", "filename": r"C:\models\a.ckpt"}, {"a", "a.ckpt"}),
        ({"model_name": "a", "title": "a.ckpt [1f]", "hash": ""}, {"a", "a.ckpt [1f]", "a.ckpt"}),
        ({"model_name": "a", "title": 7, "filename": ["x"]}, {"a"}),
    ],
)
def test_names_of_a_checkpoint(model: dict[str, Any], names: set[str]) -> None:
    assert checkpoint_names(model) == names
