"""Clients that leave, and engines that die or fall silent, in the middle of real work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.real.completions import STORY, RawStream, asked, data, events, text
from tests.real.engine import MODEL, Engine
from tests.real.gateway import Gateway, eventually, urls

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

LONG = 1500
"""Tokens: an answer that takes far longer than anything a test waits for."""


class Call(threading.Thread):
    """One plain request, under way in a thread."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._body = body
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = httpx.post(f"{self._url}/v1/completions", json=self._body, timeout=200)

    def result(self) -> httpx.Response:
        self.join(200)
        assert self.answer is not None, "no answer at all"
        return self.answer


def named(engines: tuple[Engine, Engine], name: str) -> tuple[Engine, Engine]:
    """The engine of that name, and the other one."""
    first, second = engines
    return (first, second) if first.name == name else (second, first)


def working(gateway: Gateway) -> str:
    """The name of the node that has a request."""
    name: str = eventually(
        lambda: next((name for name, node in gateway.nodes().items() if node["in_flight"]), ""), "a node at work"
    )
    return name


def begun(gateway: Gateway, events_seen: int = 3) -> tuple[RawStream, Iterator[bytes], bytes]:
    """A long stream that has brought some events, its chunks to come, and what came."""
    stream = RawStream(gateway.port, asked(STORY, LONG, stream=True))
    stream.read_head()
    assert stream.status == 200
    chunks = stream.chunks()
    came = b""
    while came.count(b"data: ") < events_seen:
        came += next(chunks)
    return stream, chunks, came


def until_cut(chunks: Iterator[bytes]) -> bytes:
    """What still comes; the end must be an abnormal one."""
    came = b""
    try:
        for chunk in chunks:
            came += chunk
    except EOFError:
        return came
    pytest.fail("the stream ended as if it were whole")


def error_at_the_end(stream: bytes) -> dict[str, Any]:
    """The error of a stream that was cut: its last event, the only one of its kind, and there is no [DONE]."""
    told = [data(event) for event in events(stream)]
    assert None not in told
    assert all("choices" in event for event in told[:-1])
    error: dict[str, Any] = told[-1]["error"]
    return error


def test_a_client_that_leaves_in_mid_stream_frees_the_node_at_once(
    lone_gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    stream, chunks, _ = begun(lone_gateway)
    began = time.monotonic()
    for _ in range(10):
        next(chunks)
    a_token = (time.monotonic() - began) / 10
    assert not lone_gateway.idle()
    stream.close()
    left = time.monotonic()
    eventually(lone_gateway.idle, "the lease of the client that left is zero", patience=10)
    answer = httpx.post(f"{lone_gateway.url}/v1/completions", json=asked(max_tokens=1), timeout=120)
    assert answer.status_code == 200
    # The engine works on one request at a time, and does not interrupt: had it gone on for nobody, this answer would
    # have come after the whole stream.
    assert time.monotonic() - left < a_token * LONG / 2
    assert answer.headers["x-steelyard-queue-ms"] == "0"
    line = lone_gateway.logged(stream.headers["x-request-id"])
    assert (line["status"], line["outcome"]) == (499, "client_gone")


def test_a_request_that_its_node_took_to_the_grave_is_answered_by_the_other(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    question = asked(STORY, 300)
    call = Call(gateway.url, question)
    victim, other = named(engines, working(gateway))
    time.sleep(0.5)  # the engine is computing; a plain answer begins when it is whole
    assert call.is_alive(), "the answer came before the engine could be killed"
    victim.kill()
    answer = call.result()
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-steelyard-node"] == other.name
    assert answer.json()["usage"]["completion_tokens"] == 300
    line = gateway.logged(answer.headers["x-request-id"])
    assert (line["node"], line["attempts"], line["outcome"]) == (other.name, 2, "ok")


def test_a_stream_of_which_nothing_came_but_the_head_is_answered_by_the_other(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    """The engine sends the head of a stream at once, and reads the prompt after that: seconds, if it is a long one."""
    stream = RawStream(gateway.port, asked(STORY * 60, 8, stream=True))
    victim, other = named(engines, working(gateway))
    time.sleep(1.0)
    victim.kill()
    stream.read_head()
    came = b"".join(stream.chunks())
    line = gateway.logged(stream.headers["x-request-id"])
    assert (line["node"], line["attempts"], line["outcome"]) == (other.name, 2, "ok")
    assert stream.headers["x-steelyard-node"] == other.name
    assert data(events(came)[-1]) is None
    assert text(came)


def test_a_stream_that_had_begun_ends_with_one_error_event_and_abnormally(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    stream, chunks, came = begun(gateway)
    victim, _ = named(engines, stream.headers["x-steelyard-node"])
    victim.kill()
    came += until_cut(chunks)
    error = error_at_the_end(came)
    assert error["code"] == "node_broke"
    assert error["message"]
    line = gateway.logged(stream.headers["x-request-id"])
    assert (line["status"], line["outcome"], line["node"]) == (200, "node_broke", victim.name)
    assert line["first_token_us"] > 0


def test_the_openai_client_raises_when_a_stream_is_cut(gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120)
    stream = client.completions.create(model=MODEL, prompt=STORY, max_tokens=LONG, temperature=0, stream=True)
    victim, _ = named(engines, stream.response.headers["x-steelyard-node"])
    parts = 0
    with pytest.raises(openai.APIError) as caught:  # noqa: PT012
        for _ in stream:
            parts += 1
            if parts == 3:
                victim.kill()
    assert parts >= 3
    assert caught.value.code == "node_broke"


def test_a_killed_node_is_down_within_seconds_and_back_when_it_runs_again(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    victim, other = engines
    victim.kill()
    eventually(lambda: gateway.nodes()[victim.name]["state"] == "down", f"{victim.name} down", patience=10)
    assert gateway.nodes()[other.name]["state"] == "ready"
    for _ in range(4):
        answer = httpx.post(f"{gateway.url}/v1/completions", json=asked(max_tokens=1), timeout=120)
        assert (answer.status_code, answer.headers["x-steelyard-node"]) == (200, other.name)
        assert "attempts" not in gateway.logged(answer.headers["x-request-id"])
    victim.start()
    victim.wait()
    eventually(lambda: gateway.nodes()[victim.name]["state"] == "ready", f"{victim.name} back", patience=20)
    nodes = set()
    for _ in range(20):
        answer = httpx.post(f"{gateway.url}/v1/completions", json=asked(max_tokens=1), timeout=120)
        nodes.add(answer.headers["x-steelyard-node"])
    assert nodes == {victim.name, other.name}


def test_with_both_killed_clients_hear_so_and_nothing_hangs(gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        engine.kill()
    answer = httpx.post(f"{gateway.url}/v1/completions", json=asked(), timeout=60)
    # Before the gateway knows, it tries, and says that it could not connect; afterwards that there is no node.
    assert answer.status_code in (502, 503)
    eventually(lambda: {node["state"] for node in gateway.nodes().values()} == {"down"}, "both down", patience=10)
    answer = httpx.post(f"{gateway.url}/v1/completions", json=asked(), timeout=60)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_node"
    assert int(answer.headers["retry-after"]) > 0


@pytest.fixture
def impatient(engines: tuple[Engine, Engine], tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that takes ten seconds of silence for an end."""
    extra = "defaults: {timeouts: {first_byte: 10s, idle: 10s}}"
    running = Gateway.before(tmp_path, "impatient", urls(*engines), extra)
    try:
        running.wait("llama-1", "llama-2")
        yield running
        eventually(running.idle, "all leases zero")
    finally:
        for engine in engines:
            engine.thaw()
        code = running.stop()
    assert code == 0, running.said()


def test_a_frozen_engine_costs_a_new_stream_time_and_not_its_answer(
    impatient: Gateway, engines: tuple[Engine, Engine]
) -> None:
    frozen, other = engines
    frozen.freeze()
    answers = []
    for _ in range(6):
        answer = httpx.post(f"{impatient.url}/v1/completions", json=asked(max_tokens=2, stream=True), timeout=120)
        answers.append((answer.status_code, answer.headers["x-steelyard-node"]))
        line = impatient.logged(answer.headers["x-request-id"])
        assert line["outcome"] == "ok"
        if line.get("attempts") == 2:
            assert line["total_us"] >= 10_000_000
            break
    else:
        # It was never chosen: then it must be known to be down, and not by luck of the draw.
        assert impatient.nodes()[frozen.name]["state"] == "down"
    assert set(answers) == {(200, other.name)}


def test_an_engine_that_freezes_in_mid_stream_is_told_as_silent(
    impatient: Gateway, engines: tuple[Engine, Engine]
) -> None:
    stream, chunks, came = begun(impatient)
    victim, _ = named(engines, stream.headers["x-steelyard-node"])
    victim.freeze()
    came += until_cut(chunks)
    assert error_at_the_end(came)["code"] == "node_silent"
