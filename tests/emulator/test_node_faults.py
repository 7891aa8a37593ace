"""Every fault, seen from a client's socket, and the control endpoints."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from steelyard.emulator import EmulatedFleet, NodeProfile
from tests.emulator.scenes import Raw, new_client, one_node, silent, until

LLM = NodeProfile(kind="llm")
ASK = {"prompt": "hello", "max_tokens": 6, "ignore_eos": True}
STREAM = json.dumps({**ASK, "stream": True}).encode()
PLAIN = json.dumps(ASK).encode()
SMALL = {"prompt": "x", "width": 512, "height": 512}


async def inject(client: httpx.AsyncClient, faults: dict[str, Any]) -> None:
    answer = await client.post("/_emulator/faults", json=faults)
    assert answer.status_code == 200, answer.text


def test_faults_are_read_set_and_cleared_and_bad_ones_are_refused(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            assert (await client.get("/_emulator/faults")).json() == {}
            await inject(client, {"slow": 3, "status": {"code": 500}})
            assert (await client.get("/_emulator/faults")).json() == {
                "slow": 3.0,
                "status": {"code": 500, "probability": 1.0},
            }
            for body, says in ((b'{"slwo": 1}', 'did you mean "slow"?'), (b"{", "not valid JSON")):
                wrong = await client.post("/_emulator/faults", content=body)
                assert wrong.status_code == 400
                assert says in wrong.json()["error"]
            assert node.faults.slow == 3.0
            assert (await client.delete("/_emulator/faults")).status_code == 200
            assert (await client.get("/_emulator/faults")).json() == {}
            lost = await client.get("/_emulator/fault")
            assert lost.status_code == 404
            assert "/_emulator/faults" in lost.json()["error"]

    run(scene())


def test_stats_tell_counters_memory_and_the_last_executions(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (_, client):
            for index in range(3):
                await client.post("/sdapi/v1/txt2img", json=SMALL, headers={"x-request-id": f"r{index}"})
            stats = (await client.get("/_emulator/stats?log=2")).json()
            assert stats["requests"]["started"] == stats["requests"]["finished"] == 3
            assert stats["requests"]["useful_seconds"] == pytest.approx(6.0)
            assert stats["memory"]["peak"] == 8_000_000_000
            assert [each["request_id"] for each in stats["log"]] == ["r1", "r2"]
            assert stats["log"][0]["outcome"] == "finished"
            assert (await client.get("/_emulator/stats")).json()["log"] == []

    run(scene())


def test_slow_stretches_running_and_new_work(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(), time_scale=0.05) as (node, client):
            await inject(client, {"slow": 4})
            await client.post("/sdapi/v1/txt2img", json={**SMALL, "steps": 25})
            slow = node.stats.log[0]
            assert slow.computed_at is not None
            assert slow.started_at is not None
            assert slow.computed_at - slow.started_at == pytest.approx(4 * 1.075)

    run(scene())


def test_a_stall_strikes_with_its_probability_and_the_same_requests_for_the_same_seed(run: Any) -> None:
    async def stalled(seed: int) -> list[bool]:
        async with one_node(NodeProfile(kind="classify", concurrency=100), time_scale=0.005, seed=seed) as (
            node,
            client,
        ):
            await inject(client, {"stall": {"probability": 0.3, "seconds": 10}})
            for _ in range(20):
                await client.post("/classify", json={"text": "good"})
            times = [(each.computed_at or 0) - (each.started_at or 0) for each in node.stats.log]
            assert all(time == pytest.approx(0.01) or time >= 10 for time in times)
            return [time >= 10 for time in times]

    async def scene() -> None:
        first = await stalled(1)
        assert 1 <= sum(first) <= 13
        assert await stalled(1) == first
        assert await stalled(2) != first

    run(scene())


def test_hang_before_accept_reads_nothing_and_goes_on_when_it_ends(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            kept = await Raw.open(node)
            kept.post("/v1/completions", PLAIN)
            assert (await kept.answer())[0] == 200
            await inject(client, {"hang": "accept"})
            fresh = await Raw.open(node)  # the kernel still accepts
            kept.post("/v1/completions", PLAIN)
            fresh.post("/v1/completions", PLAIN)
            waiting = [await silent(raw.answer()) for raw in (kept, fresh)]
            assert node.stats.started == 1  # nothing was read
            await inject(client, {"hang": None})
            assert [(await each)[0] for each in waiting] == [200, 200]
            assert node.stats.finished == 3
            for raw in (kept, fresh):
                raw.close()

    run_on_both(scene())


def test_hang_before_headers_computes_but_sends_nothing(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"hang": "headers"})
            raws = [await Raw.open(node), await Raw.open(node)]
            raws[0].post("/v1/completions", PLAIN)
            raws[1].post("/v1/completions", STREAM)
            waiting = [await silent(raw.head()) for raw in raws]
            await until(lambda: all(each.computed_at for each in node.stats.log), "both are computed")
            assert node.stats.open == 2
            assert (await client.get("/health")).status_code == 200
            assert (await client.delete("/_emulator/faults")).status_code == 200
            assert [(await each)[0] for each in waiting] == [200, 200]
            assert (await raws[1].reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")).count(b"data: ") == 8
            assert node.stats.finished == 2
            for raw in raws:
                raw.close()

    run_on_both(scene())


def test_a_client_that_leaves_a_hung_node_is_still_noticed(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"hang": "headers"})
            raw = await Raw.open(node)
            raw.post("/v1/completions", PLAIN)
            await until(lambda: node.stats.open == 1, "it arrived")
            raw.close()
            await until(lambda: node.stats.aborted == 1, "the abort is recorded")

    run_on_both(scene())


def test_hang_mid_sends_some_events_then_nothing(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"hang": "mid", "hang_after": 3})
            raw = await Raw.open(node)
            raw.post("/v1/completions", STREAM)
            assert (await raw.head())[0] == 200
            for _ in range(3):
                await asyncio.wait_for(raw.reader.readuntil(b"\n\n\r\n"), 5)
            rest = await silent(raw.reader.readuntil(b"0\r\n\r\n"))
            await inject(client, {"hang": None, "hang_after": None})
            assert (await rest).count(b"data: ") == 5
            plain = await Raw.open(node)
            await inject(client, {"hang": "mid"})
            plain.post("/v1/completions", PLAIN)
            status, headers = await plain.head()
            half = await asyncio.wait_for(plain.reader.readexactly(int(headers["content-length"]) // 2), 5)
            rest = await silent(plain.reader.read(1))
            assert (status, half[:1]) == (200, b"{")
            assert (await client.delete("/_emulator/faults")).status_code == 200
            assert len(await rest) == 1
            for each in (raw, plain):
                each.close()

    run_on_both(scene())


@pytest.mark.parametrize("events", [0, 1, 3])
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_cut_stream_ends_after_exactly_that_many_events(run_on_both: Any, events: int, how: str) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"cut_after": events, "how": how})
            # A plain socket: asyncio's streams throw away what they have read when a reset comes.
            loop = asyncio.get_running_loop()
            client_socket = socket.create_connection((node.host, node.port))
            client_socket.setblocking(False)
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(STREAM)}\r\n\r\n"
            await loop.sock_sendall(client_socket, head.encode() + STREAM)
            got = b""
            reset = False
            try:
                while piece := await asyncio.wait_for(loop.sock_recv(client_socket, 65536), 5):
                    got += piece
            except ConnectionResetError:
                reset = True
            finally:
                client_socket.close()
            assert reset is (how == "rst")
            assert got.count(b"data: ") == events
            assert b"[DONE]" not in got
            assert got.startswith(b"HTTP/1.1 200 OK\r\n") is (events > 0)
            await until(lambda: node.stats.failed == 1, "it failed")
            assert node.engine.load()["running"] == 0

    run_on_both(scene())


def test_a_cut_plain_answer_ends_in_the_middle_of_its_body(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (node, client):
            await inject(client, {"cut_after": 1})
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
                await client.post("/sdapi/v1/txt2img", json=SMALL)
            await inject(client, {"cut_after": 0})
            with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
                await client.post("/sdapi/v1/txt2img", json=SMALL)
            assert (node.stats.failed, node.engine.card.allocated) == (2, 0)

    run_on_both(scene())


def test_a_status_is_answered_at_once_in_the_shape_of_the_engine(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"status": {"code": 500, "probability": 1.0}})
            answer = await client.post("/v1/completions", json=ASK)
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
            assert (await client.get("/v1/models")).status_code == 200  # only work fails
            await inject(client, {"status": {"code": 500, "probability": 0.5}})
            codes = [(await client.post("/v1/completions", json=ASK)).status_code for _ in range(30)]
            assert set(codes) == {200, 500}
            assert node.stats.failed == 1 + codes.count(500)

    run(scene())


def test_oom_fails_every_job_in_the_shape_of_the_engine(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile()) as (node, client):
            await inject(client, {"oom": True})
            body = (await client.post("/sdapi/v1/txt2img", json=SMALL)).json()
            assert body["error"] == "OutOfMemoryError"
            assert (node.stats.oom, node.engine.card.oom_count) == (1, 1)
        async with one_node(LLM) as (node, client):
            await inject(client, {"oom": True})
            answer = await client.post("/v1/completions", json=ASK)
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "The server had an error while processing your request."
            assert (await client.get("/health")).status_code == 503  # it killed the engine
            assert node.stats.oom == 1
        async with one_node(NodeProfile(kind="classify")) as (_, client):
            await inject(client, {"oom": True})
            assert (await client.post("/classify", json={"text": "x"})).json()["error"].startswith("CUDA out of memory")

    run(scene())


def test_a_crash_resets_everything_and_the_node_comes_back_empty(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM, time_scale=1.0) as (node, client):
            busy = await Raw.open(node)
            busy.post("/v1/completions", json.dumps({**ASK, "max_tokens": 5000}).encode())
            await until(lambda: node.engine.load()["running"] == 1, "it runs")
            idle = await Raw.open(node)
            await until(lambda: len(node.connections) == 2, "both are connected")
            port = node.port
            await inject(client, {"crash": True, "recover_after": 1.0})
            for raw in (busy, idle):
                with pytest.raises(ConnectionResetError):
                    await raw.rest()
            with pytest.raises(OSError, match=r"refused|[Cc]onnect"):
                await Raw.open(node)
            assert (node.listening, node.stats.failed, node.engine.load()["running"]) == (False, 1, 0)
            await until(lambda: node.listening, "it listens again")
            assert node.port == port
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            assert (await client.get("/_emulator/faults")).json() == {}

    run_on_both(scene())


def test_a_node_whose_port_was_taken_meanwhile_comes_back_when_it_is_free(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            await inject(client, {"crash": True})
            await until(lambda: not node.listening and not node.connections, "it is down")
            with socket.create_server(("127.0.0.1", node.port)):
                node.recover()
                await asyncio.sleep(0.15)
                assert not node.listening
            await until(lambda: node.listening, "it listens again")
            assert (await client.get("/health")).status_code == 200

    run(scene())


def test_a_sibling_brings_a_crashed_node_back(run: Any) -> None:
    async def scene() -> None:
        async with EmulatedFleet([LLM, LLM], time_scale=0.02) as fleet, new_client() as client:
            one, two = fleet.nodes
            await client.post(f"{one.url}/_emulator/faults?node=gpu-2", json={"crash": True})
            await until(lambda: not two.listening, "it is down")
            assert (await client.get(f"{one.url}/_emulator/stats?node=gpu-2")).json()["up"] is False
            await client.delete(f"{one.url}/_emulator/faults?node=gpu-2")
            await until(lambda: two.listening, "it is back")
            assert (await client.get(f"{two.url}/health")).status_code == 200
            unknown = await client.get(f"{one.url}/_emulator/stats?node=gpu-9")
            assert (unknown.status_code, unknown.json()) == (404, {"error": "no node 'gpu-9' in this fleet"})

    run(scene())


def test_frozen_metrics_do_not_move_and_missing_ones_are_404(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (_, client):
            before = (await client.get("/metrics")).text
            await inject(client, {"metrics": "frozen"})
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            assert (await client.get("/metrics")).text == before
            await inject(client, {"metrics": "missing"})
            assert (await client.get("/metrics")).status_code == 404
            await inject(client, {"metrics": None})
            after = (await client.get("/metrics")).text
            assert 'vllm:generation_tokens_total{engine="0",model_name="llama-3.1-8b"} 6.0' in after
        async with one_node(NodeProfile()) as (_, client):
            await inject(client, {"metrics": "frozen"})
            await client.post("/sdapi/v1/txt2img", json=SMALL)
            assert (await client.get("/sdapi/v1/memory")).json()["cuda"]["allocated"]["peak"] == 0

    run(scene())


@pytest.mark.parametrize(
    ("kind", "path"),
    [("llm", "/health"), ("sd", "/internal/ping"), ("whisper", "/health"), ("classify", "/v2/health/ready")],
)
def test_health_can_be_made_to_fail(run: Any, kind: Any, path: str) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind=kind)) as (_, client):
            assert (await client.get(path)).status_code == 200
            await inject(client, {"health": 503})
            assert (await client.get(path)).status_code == 503

    run(scene())
