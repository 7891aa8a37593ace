"""The clients that people use: the official SDKs of OpenAI and Anthropic, and curl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import anthropic
import httpx
import openai
import pytest

from tests.real.completions import PROMPT, STORY, asked, data, events, text
from tests.real.engine import MODEL, Engine
from tests.real.gateway import Gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture
def client(lone_gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{lone_gateway.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture
def direct(engines: tuple[Engine, Engine]) -> openai.OpenAI:
    """The same client, without the gateway."""
    return openai.OpenAI(base_url=f"{engines[0].url}/v1", api_key="none", max_retries=0, timeout=120)


def completion(client: openai.OpenAI) -> str:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, seed=7)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    return answer.choices[0].text


def streamed(client: openai.OpenAI) -> list[str]:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, seed=7, stream=True)
    return [part.choices[0].text for part in stream]


def test_openai_completions(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    completion(direct)  # fills the engine's cache
    assert completion(client) == completion(direct)
    assert "Rome" in completion(client)


def test_openai_streams(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    completion(direct)
    parts = streamed(client)
    assert len(parts) > 5
    assert parts == streamed(direct)
    assert "".join(parts) == completion(client)


def test_openai_chat_streams(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """The weights are a base model, which would end its turn at once: a grammar, which is this engine's own field of
    the request, makes it say something."""

    def chat(client: openai.OpenAI) -> list[str | None]:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count: one, two, three,"}],
            max_tokens=16,
            temperature=0,
            seed=7,
            extra_body={"grammar": "root ::= [a-z ]{24,40}"},
            stream=True,
        )
        return [part.choices[0].delta.content for part in stream]

    chat(direct)
    parts = chat(client)
    assert len(parts) > 10
    assert any(parts)
    assert parts == chat(direct)


def test_openai_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-17", prompt=PROMPT)
    assert unknown.value.code == "unknown_model"
    assert MODEL in unknown.value.message


def test_anthropic_hears_clearly_that_this_engine_does_not_speak_it(lone_gateway: Gateway) -> None:
    """llama.cpp's own server has the Messages API; the one of llama-cpp-python has not, and says 404 itself."""
    client = anthropic.Anthropic(base_url=lone_gateway.url, api_key="none", max_retries=0, timeout=60)
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Hello"}])
    assert caught.value.status_code == 404
    assert caught.value.response.headers["x-steelyard-node"] == "llama-1"
    assert caught.value.response.json() == {"detail": "Not Found"}
    line = lone_gateway.logged(caught.value.response.headers["x-request-id"])
    assert (line["dialect"], line["status"], line["outcome"]) == ("anthropic", 404, "ok")


def test_anthropic_gets_its_own_error_shape_for_an_unknown_model(lone_gateway: Gateway) -> None:
    client = anthropic.Anthropic(base_url=lone_gateway.url, api_key="none", max_retries=0, timeout=60)
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="no-such", max_tokens=8, messages=[{"role": "user", "content": "Hello"}])
    body = caught.value.response.json()
    assert body["type"] == "error"
    assert MODEL in body["error"]["message"]


def curl(need: Callable[[str], str], *arguments: str, body: bytes | None = None) -> bytes:
    command = [need("curl"), "--silent", "--show-error", "--fail-with-body", "--max-time", "120", *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=body).stdout


JSON = ("--header", "content-type: application/json")


def test_curl(need: Callable[[str], str], lone_gateway: Gateway) -> None:
    url = f"{lone_gateway.url}/v1/completions"
    plain = json.loads(curl(need, url, *JSON, "--data", json.dumps(asked())))
    stream = curl(need, "--no-buffer", url, *JSON, "--data", json.dumps(asked(stream=True)))
    assert "Rome" in plain["choices"][0]["text"]
    assert text(stream) == plain["choices"][0]["text"]
    listed = json.loads(curl(need, f"{lone_gateway.url}/v1/models"))
    assert [card["id"] for card in listed["data"]] == [MODEL]
    assert json.loads(curl(need, f"{lone_gateway.url}/health")) == {"status": "ok"}


def test_curl_with_a_body_in_chunks(need: Callable[[str], str], lone_gateway: Gateway) -> None:
    """As curl sends what it reads from a pipe, with an expectation."""
    answer = curl(
        need,
        *(f"{lone_gateway.url}/v1/completions", *JSON, "--data-binary", "@-"),
        *("--header", "transfer-encoding: chunked", "--header", "expect: 100-continue"),
        body=json.dumps(asked(STORY * 20, 2)).encode(),
    )
    assert json.loads(answer)["usage"]["prompt_tokens"] > 200


def test_curl_http_1_0(need: Callable[[str], str], lone_gateway: Gateway) -> None:
    """A stream to a client that knows no chunks: the end of the connection is its end."""
    stream = curl(
        need,
        *("--http1.0", f"{lone_gateway.url}/v1/completions", *JSON, "--data", json.dumps(asked(stream=True))),
    )
    assert data(events(stream)[-1]) is None


def test_httpx_keeps_one_connection_for_many_answers(lone_gateway: Gateway) -> None:
    with httpx.Client(base_url=lone_gateway.url, timeout=120) as http:
        for number in range(6):
            answer = http.post("/v1/completions", json=asked(max_tokens=2, stream=bool(number % 2)))
            assert answer.status_code == 200
            assert "connection" not in answer.headers
