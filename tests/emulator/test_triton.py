"""KServe v2 as Triton speaks it, and the plain classifier, over sockets."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from steelyard.emulator import NodeProfile
from tests.emulator.scenes import one_node, until

V1 = NodeProfile(kind="classify")
V2 = NodeProfile(kind="classify", version="v2")


def tensor(*texts: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}]}


def samples(text: str) -> dict[str, float]:
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_v1_knows_two_labels_and_v2_a_third(run: Any) -> None:
    async def labels(profile: NodeProfile) -> list[Any]:
        async with one_node(profile) as (_, client):
            texts = ("a great day", "a bad day", "a day")
            return [(await client.post("/classify", json={"text": text})).json() for text in texts]

    async def scene() -> None:
        one, two = await labels(V1), await labels(V2)
        assert [each["label"] for each in one[:2]] == ["positive", "negative"]
        assert one[2]["label"] in ("positive", "negative")
        assert [each["label"] for each in two] == ["positive", "negative", "neutral"]
        assert {each["version"] for each in one} == {"v1"}
        assert {each["version"] for each in two} == {"v2"}

    run(scene())


def test_infer_in_json_and_in_binary_tensors(run: Any) -> None:
    async def scene() -> None:
        async with one_node(V2) as (_, client):
            body = (await client.post("/v2/models/sentiment/infer", json={**tensor("good", "x"), "id": "7"})).json()
            assert body == {
                "model_name": "sentiment",
                "model_version": "2",
                "id": "7",
                "outputs": [{"name": "label", "datatype": "BYTES", "shape": [2], "data": ["positive", "neutral"]}],
            }
            raw = b"".join(struct.pack("<I", len(text)) + text for text in (b"bad", b"good good"))
            head = json.dumps(
                {
                    "inputs": [
                        {
                            "name": "text",
                            "datatype": "BYTES",
                            "shape": [2],
                            "parameters": {"binary_data_size": len(raw)},
                        }
                    ],
                    "outputs": [{"name": "label", "parameters": {"binary_data": True}}],
                }
            ).encode()
            headers = {"Inference-Header-Content-Length": str(len(head))}
            answer = await client.post("/v2/models/sentiment/versions/2/infer", content=head + raw, headers=headers)
            size = int(answer.headers["inference-header-content-length"])
            output = json.loads(answer.content[:size])["outputs"][0]
            assert output["parameters"]["binary_data_size"] == len(answer.content) - size
            assert answer.content[size:] == struct.pack("<I", 8) + b"negative" + struct.pack("<I", 8) + b"positive"

    run(scene())


def test_generate_and_generate_stream(run: Any) -> None:
    async def scene() -> None:
        async with one_node(V1) as (_, client):
            body = (await client.post("/v2/models/sentiment/generate", json={"text_input": "good"})).json()
            assert body == {"model_name": "sentiment", "model_version": "1", "text_output": "positive"}
            stream = await client.post("/v2/models/sentiment/generate_stream", json={"text_input": "good"})
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = stream.text.split("\n\n")
            assert events.pop() == ""  # and no [DONE]
            words = "".join(json.loads(event.removeprefix("data: "))["text_output"] for event in events)
            assert words == "positive because of 1 positive and 0 negative words "

    run(scene())


def test_health_metadata_and_the_repository(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="classify", version="v2", models=("a", "b"))) as (_, client):
            assert (await client.get("/v2")).json()["name"] == "triton"
            for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/a/ready", "/v2/models/b/versions/2/ready"):
                answer = await client.get(path)
                assert (answer.status_code, answer.content) == (200, b"")
            assert (await client.get("/v2/models/a/versions/1/ready")).status_code == 400
            assert (await client.get("/v2/models/a")).json()["versions"] == ["2"]
            index = (await client.post("/v2/repository/index", json={})).json()
            assert [(row["name"], row["state"]) for row in index] == [("a", "READY"), ("b", "READY")]
            assert (await client.get("/v2/models/a/stats")).json()["model_stats"][0]["inference_count"] == 0

    run(scene())


def test_one_instance_computes_one_at_a_time_and_metrics_tell_the_queue(run: Any) -> None:
    async def scene() -> None:
        profile = NodeProfile(kind="classify", classify_seconds=4.0)
        async with one_node(profile, time_scale=0.05) as (node, client):
            path = "/v2/models/sentiment/infer"
            jobs = [asyncio.ensure_future(client.post(path, json=tensor("good", "bad"))) for _ in range(3)]
            await until(lambda: node.engine.load() == {"running": 1, "waiting": 2}, "two wait")
            found = samples(node.engine.metrics().decode())  # this instant, while they wait
            assert found["nv_inference_pending_request_count"] == 2
            assert found["nv_gpu_memory_total_bytes"] == 24_000_000_000
            assert found["nv_gpu_memory_used_bytes"] == 2_050_000_000
            assert [(await job).status_code for job in jobs] == [200] * 3
            found = samples((await client.get("/metrics")).text)
            assert found["nv_inference_request_success_total"] == 3
            assert found["nv_inference_count_total"] == 6
            assert found["nv_inference_pending_request_count"] == 0
            assert 0.5 < found["nv_gpu_utilization"] <= 1.0
            assert found["nv_inference_request_duration_us_total"] >= (4 + 8 + 12) * 1e6
            assert found["nv_inference_queue_duration_us_total"] >= (4 + 8) * 1e6

    run(scene())


def test_a_full_queue_answers_503_in_the_words_of_triton(run: Any) -> None:
    async def scene() -> None:
        profile = NodeProfile(kind="classify", queue_limit=1, classify_seconds=5.0)
        async with one_node(profile, time_scale=0.1) as (node, client):
            jobs = [asyncio.ensure_future(client.post("/classify", json={"text": "x"})) for _ in range(3)]
            codes = sorted([(await job).status_code for job in jobs])
            assert codes == [200, 200, 503]
            assert node.stats.failed == 1

    run(scene())


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/classify", {"txt": "x"}, 400, 'must be {"text": "..."}'),
        ("/v2/models/nope/infer", tensor("x"), 404, "unknown model: 'nope'"),
        ("/v2/models/sentiment/versions/9/infer", tensor("x"), 404, "version 9 is not found"),
        ("/v2/models/sentiment/infer", {}, 400, "inputs"),
        ("/v2/models/sentiment/infer", {"inputs": [{"name": "t", "datatype": "FP32"}]}, 400, "expects 'BYTES'"),
        ("/v2/models/sentiment/infer", {"inputs": [{"datatype": "BYTES", "data": [1]}]}, 400, "must be a string"),
        ("/v2/models/sentiment/generate", {}, 400, "text_input"),
    ],
)
def test_bad_requests(run: Any, path: str, body: Any, status: int, says: str) -> None:
    async def scene() -> None:
        async with one_node(V1) as (node, client):
            answer = await client.post(path, json=body)
            assert answer.status_code == status
            assert says in answer.json()["error"]
            assert node.stats.failed == 1

    run(scene())


@pytest.mark.parametrize(
    ("length", "size", "says"),
    [("999999", 5, "exceeds the body"), ("x", 5, "exceeds the body"), (None, 500, "exceeds the"), (None, 5, "longer")],
)
def test_bad_binary_tensors(run: Any, length: str | None, size: int, says: str) -> None:
    async def scene() -> None:
        async with one_node(V1) as (_, client):
            parameters = {"binary_data_size": size}
            head = json.dumps({"inputs": [{"datatype": "BYTES", "parameters": parameters}]}).encode()
            headers = {"Inference-Header-Content-Length": length or str(len(head))}
            body = head + b"\x09\x00\x00\x00abcd"
            answer = await client.post("/v2/models/sentiment/infer", content=body, headers=headers)
            assert answer.status_code == 400
            assert says in answer.json()["error"]

    run(scene())
