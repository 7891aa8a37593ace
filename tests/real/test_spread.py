"""Several clients at once before two engines that work on one request at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.real.completions import STORY, asked
from tests.real.gateway import Gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def at_once(gateway: Gateway, clients: int, max_tokens: int) -> list[httpx.Response]:
    """The answers to requests that are sent in the same moment."""
    together = threading.Barrier(clients)

    def client(number: int) -> httpx.Response:
        with httpx.Client(timeout=200) as http:
            together.wait()
            return http.post(f"{gateway.url}/v1/completions", json=asked(STORY, max_tokens))

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(client, range(clients)))


def test_two_clients_have_a_node_each(gateway: Gateway) -> None:
    for _ in range(3):
        answers = at_once(gateway, 2, 60)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {answer.headers["x-steelyard-node"] for answer in answers} == {"llama-1", "llama-2"}
        assert [answer.headers["x-steelyard-queue-ms"] for answer in answers] == ["0", "0"]


def test_who_comes_third_waits_in_line_and_not_at_an_engine(gateway: Gateway) -> None:
    answers = at_once(gateway, 5, 40)
    assert [answer.status_code for answer in answers] == [200] * 5
    lines = [gateway.logged(answer.headers["x-request-id"]) for answer in answers]
    assert sorted(line.get("queued_us", 0) > 0 for line in lines) == [False, False, True, True, True]
    # The wait was in the gateway: the time at the node is that of one answer alone.
    waited = max(lines, key=lambda line: line.get("queued_us", 0))
    assert waited["first_byte_us"] + waited["queued_us"] <= waited["total_us"]
    assert {line["node"] for line in lines} == {"llama-1", "llama-2"}
    texts = {answer.json()["choices"][0]["text"] for answer in answers}
    assert all(texts)
