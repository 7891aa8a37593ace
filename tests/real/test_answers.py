"""Answers through the gateway are the engine's own, to the byte."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.real.completions import PROMPT, STORY, RawStream, asked, data, events, text
from tests.real.engine import CONTEXT, MODEL, Engine
from tests.real.gateway import Gateway, eventually
from tests.real.wiretap import WireTap

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CHANGES = re.compile(rb'"(id)": ?"[^"]*"|"(created)": ?\d+')
"""What an engine writes anew into every answer."""


def steady(answer: bytes) -> bytes:
    """The answer without what differs between two answers to one question."""
    return CHANGES.sub(rb'"\1\2"', answer)


def ask(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=asked(**fields), timeout=120)  # type: ignore[arg-type]


@pytest.fixture
def tap(engines: tuple[Engine, Engine]) -> Iterator[WireTap]:
    running = WireTap(engines[0].port)
    yield running
    running.close()


@pytest.fixture
def tapped(tap: WireTap, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that reaches the first engine through a wire tap only."""
    running = Gateway.before(tmp_path, "tapped", {"tapped": f"http://127.0.0.1:{tap.port}"})
    try:
        running.wait("tapped")
        yield running
        eventually(running.idle, "all leases zero")
    finally:
        assert running.stop() == 0, running.said()


def test_the_server_is_recognised_as_one_that_speaks_openai(gateway: Gateway) -> None:
    """It says neither its name nor its version: `owned_by` is "me". Its health is told by any answer below 500."""
    nodes = gateway.nodes()
    assert {name: node["engine"] for name, node in nodes.items()} == {"llama-1": "openai", "llama-2": "openai"}
    assert all(node["models"] == [MODEL] for node in nodes.values())


def test_the_list_of_models_is_the_union_with_the_engines_own_cards(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    direct = httpx.get(f"{engines[0].url}/v1/models", timeout=10).json()
    assert [card["id"] for card in direct["data"]] == [MODEL]
    listed = httpx.get(f"{gateway.url}/v1/models", timeout=10).json()
    assert listed["object"] == "list"
    assert [{**card, **own} for card, own in zip(listed["data"], direct["data"], strict=True)] == listed["data"]


def test_a_plain_answer_is_the_direct_one(gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    # The first answer to a prompt fills the engine's cache, and what comes from the cache is summed up in another
    # order: the answers that are compared are the second ones.
    direct = [[ask(engine.url) for _ in range(2)][1] for engine in engines]
    served = set()
    for _ in range(6):
        answer = ask(gateway.url)
        assert answer.status_code == 200
        assert steady(answer.content) in [steady(one.content) for one in direct]
        assert answer.headers["content-type"] == direct[0].headers["content-type"]
        served.add(answer.headers["x-steelyard-node"])
    assert served <= {"llama-1", "llama-2"}
    assert "Rome" in json.loads(answer.content)["choices"][0]["text"]


def test_a_stream_has_the_events_of_the_direct_one(lone_gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    url = engines[0].url
    plain = [ask(url, prompt=STORY, max_tokens=40) for _ in range(2)][1]
    direct = ask(url, prompt=STORY, max_tokens=40, stream=True)
    answer = ask(lone_gateway.url, prompt=STORY, max_tokens=40, stream=True)
    assert answer.headers["content-type"] == direct.headers["content-type"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(events(answer.content)) > 20
    assert [steady(event) for event in events(answer.content)] == [steady(event) for event in events(direct.content)]
    assert text(answer.content) == text(direct.content) == plain.json()["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_every_byte_of_the_engine_reaches_the_client_as_it_is(tapped: Gateway, tap: WireTap, stream: bool) -> None:
    tap.clear()
    client = RawStream(tapped.port, asked(STORY, 40, stream=stream))
    client.read_head()
    assert client.status == 200
    body = b"".join(client.chunks()) if stream else client.rest(int(client.headers["content-length"]))
    client.close()
    # The health checks use the same connections: the answer is the one with the id that the client has.
    identity = data(events(body)[0])["id"] if stream else json.loads(body)["id"]
    (sent,) = tap.answers(identity.encode())
    start = sent.rindex(b"HTTP/1.1 200 OK\r\n", 0, sent.index(identity.encode()))
    head, _, rest = sent[start:].partition(b"\r\n\r\n")
    if stream:
        assert b"transfer-encoding: chunked" in head.lower()
        assert dechunked(rest) == body
    else:
        assert rest[: len(body)] == body
    ours = {"x-steelyard-node", "x-steelyard-reason", "x-steelyard-queue-ms", "x-request-id"}
    theirs = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    }
    # Its connection is with the gateway, and the request has the gateway's id.
    theirs = {name: value for name, value in theirs.items() if name not in ("connection", "x-request-id")}
    assert {name: value for name, value in client.headers.items() if name not in ours} == theirs
    assert ours <= set(client.headers)


def dechunked(rest: bytes) -> bytes:
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not (length := int(size, 16)):
            return body
        body += rest[:length]
        rest = rest[length + 2 :]


def test_the_gateways_request_id_is_one_that_the_engine_accepts(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    """This server, like others on Starlette, answers 400 without a word when the id is no UUID."""
    direct = httpx.get(f"{engines[0].url}/v1/models", headers={"x-request-id": "my-own-id"}, timeout=10)
    assert (direct.status_code, direct.content) == (400, b"")
    answer = ask(gateway.url, max_tokens=1)
    assert answer.status_code == 200
    assert uuid.UUID(answer.headers["x-request-id"]).version == 4


def test_the_access_log_tells_what_the_engine_counted(gateway: Gateway) -> None:
    answer = ask(gateway.url)
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] > 5
    line = gateway.logged(answer.headers["x-request-id"])
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["node"] == answer.headers["x-steelyard-node"]
    assert line["bytes_out"] == len(answer.content)
    assert line["model"] == MODEL
    assert line["dialect"] == "openai"
    assert (line["status"], line["outcome"]) == (200, "ok")
    assert 0 < line["first_byte_us"] <= line["total_us"]


def test_the_access_log_tells_when_the_first_token_of_a_stream_came(gateway: Gateway) -> None:
    answer = ask(gateway.url, prompt=STORY, max_tokens=40, stream=True)
    line = gateway.logged(answer.headers["x-request-id"])
    assert line["stream"] is True
    # The engine sends its head before it has read the prompt, and the first token after that.
    assert 0 < line["first_byte_us"] < line["first_token_us"] < line["total_us"]
    assert line["bytes_out"] == len(answer.content)
    # This server counts tokens in plain answers only; what nobody has counted is not made up.
    assert not any("usage" in (data(event) or {}) for event in events(answer.content))
    assert "completion_tokens" not in line


def test_what_the_engine_refuses_is_refused_in_its_own_words(
    lone_gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    too_long = "word " * (CONTEXT + 50)
    direct = ask(engines[0].url, prompt=too_long)
    assert direct.status_code == 400
    answer = ask(lone_gateway.url, prompt=too_long)
    assert (answer.status_code, answer.content) == (direct.status_code, direct.content)
    assert str(CONTEXT) in answer.json()["error"]["message"]


def test_a_model_that_no_engine_has_is_told_with_those_that_there_are(gateway: Gateway) -> None:
    answer = httpx.post(f"{gateway.url}/v1/completions", json={**asked(), "model": "gemma-27b"}, timeout=10)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_model"
    assert MODEL in answer.json()["error"]["message"].replace("gemma-27b", "")


def test_a_body_that_is_no_json_never_reaches_an_engine(gateway: Gateway) -> None:
    answer = httpx.post(
        f"{gateway.url}/v1/completions",
        content=json.dumps(asked(PROMPT))[:-1],
        headers={"content-type": "application/json"},
        timeout=10,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"
    assert "node" not in gateway.logged(answer.headers["x-request-id"])
