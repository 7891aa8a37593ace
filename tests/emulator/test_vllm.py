"""The vLLM dialect over sockets: OpenAI and Anthropic, whole and streamed, with continuous batching behind."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from steelyard.emulator import EmulatorError, NodeProfile
from steelyard.emulator.batching import IterationTimes
from tests.emulator.scenes import Raw, one_node, until

LLM = NodeProfile(kind="llm")
HELLO = {"messages": [{"role": "user", "content": "hello there"}]}


def events(text: str) -> list[Any]:
    """The data of an OpenAI stream, which must end with [DONE]."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def parse(text: str) -> dict[str, float]:
    """Metrics by name and sorted labels, through the parser of the official client library."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("engine", "model_name")}
            found[sample.name + (str(sorted(labels.items())) if labels else "")] = sample.value
    return found


async def samples(client: Any) -> dict[str, float]:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse(answer.text)


def test_chat_streams_a_role_then_tokens_then_the_reason_then_usage(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            ask = {**HELLO, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}}
            answer = await client.post("/v1/chat/completions", json=ask)
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-emulated-execution"] == "gpu-1-000001"
            chunks = events(answer.text)
            assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            words = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:7]]
            assert all(word.strip() for word in words)
            assert chunks[7]["choices"][0]["finish_reason"] == "length"
            assert all(chunk["usage"] is None for chunk in chunks[:8])
            assert chunks[8]["choices"] == []
            assert chunks[8]["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
            assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
            assert len({chunk["id"] for chunk in chunks}) == 1
            whole = (await client.post("/v1/chat/completions", json={**HELLO, "max_tokens": 6})).json()
            assert whole["choices"][0]["message"]["content"] == "".join(words)
            assert whole["choices"][0]["finish_reason"] == "length"
            assert whole["usage"] == chunks[8]["usage"]
            assert node.stats.finished == 2

    run_on_both(scene())


def test_the_same_seed_says_the_same_on_every_node_and_another_seed_something_else(run: Any) -> None:
    async def say(seed: int, name: str) -> Any:
        async with one_node(NodeProfile(kind="llm", name=name), seed=seed) as (_, client):
            body = (await client.post("/v1/chat/completions", json=HELLO)).json()
            return body["choices"][0], body["usage"]["completion_tokens"]

    async def scene() -> None:
        assert await say(1, "a") == await say(1, "b")
        assert await say(1, "a") != await say(2, "a")

    run(scene())


def test_a_cut_answer_can_be_continued_to_the_same_text(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (_, client):
            whole = (await client.post("/v1/chat/completions", json=HELLO)).json()["choices"][0]["message"]["content"]
            half = "".join(f"{word} " for word in whole.split()[:10])
            ask = {
                "messages": [*HELLO["messages"], {"role": "assistant", "content": half}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            }
            rest = (await client.post("/v1/chat/completions", json=ask)).json()["choices"][0]
            assert half + rest["message"]["content"] == whole
            assert rest["finish_reason"] == "stop"

    run(scene())


def test_completions_with_lists_choices_and_defaults(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            body = (
                await client.post("/v1/completions", json={"prompt": ["one", "two"], "n": 2, "max_tokens": 3})
            ).json()
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
            assert len({choice["text"] for choice in body["choices"]}) == 4
            assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}
            plain = {"prompt": [1, 2, 3], "ignore_eos": True}
            body = (await client.post("/v1/completions", json=plain)).json()
            assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}
            stream = {"prompt": "hello", "n": 2, "max_tokens": 4, "ignore_eos": True, "stream": True}
            chunks = events((await client.post("/v1/completions", json=stream)).text)
            for index in (0, 1):
                own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
                assert [each["finish_reason"] for each in own] == [None] * 4 + ["length"]
            assert node.stats.failed == 0

    run(scene())


def test_embeddings_are_unit_vectors_in_both_encodings(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (_, client):
            ask = {"input": ["one", "two"], "dimensions": 8}
            body = (await client.post("/v1/embeddings", json=ask)).json()
            vectors = [each["embedding"] for each in body["data"]]
            assert [len(vector) for vector in vectors] == [8, 8]
            assert sum(value * value for value in vectors[0]) == pytest.approx(1)
            assert vectors[0] != vectors[1]
            packed = (await client.post("/v1/embeddings", json={**ask, "encoding_format": "base64"})).json()
            unpacked = struct.unpack("<8f", base64.b64decode(packed["data"][1]["embedding"]))
            assert unpacked == pytest.approx(vectors[1], abs=1e-6)
            assert body["usage"]["prompt_tokens"] == 2

    run(scene())


def test_anthropic_messages_whole_and_streamed(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (_, client):
            ask = {**HELLO, "max_tokens": 4}
            body = (await client.post("/v1/messages", json=ask)).json()
            assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "max_tokens")
            assert body["usage"] == {"input_tokens": 7, "output_tokens": 4}
            text = (await client.post("/v1/messages", json={**ask, "stream": True})).text
            blocks = [block.split("\n") for block in text.strip().split("\n\n")]
            names = [lines[0].removeprefix("event: ") for lines in blocks]
            data = [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]
            assert names == [
                "message_start",
                "content_block_start",
                *["content_block_delta"] * 4,
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            assert [each["type"] for each in data] == names
            said = "".join(each["delta"]["text"] for each in data if each["type"] == "content_block_delta")
            assert said == body["content"][0]["text"]
            assert data[-2]["usage"] == {"output_tokens": 4}
            count = await client.post("/v1/messages/count_tokens", json=HELLO)
            assert count.json() == {"input_tokens": 7}
            missing = await client.post("/v1/messages", json=HELLO)
            assert (missing.status_code, missing.json()["error"]["type"]) == (400, "invalid_request_error")

    run(scene())


def test_the_official_clients_understand_it(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, _):
            openai = AsyncOpenAI(base_url=node.url + "/v1", api_key="none", max_retries=0)
            messages: Any = HELLO["messages"]
            stream = await openai.chat.completions.create(
                model="llama-3.1-8b", messages=messages, stream=True, stream_options={"include_usage": True}
            )
            text, usage = "", None
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                usage = chunk.usage or usage
            assert usage is not None
            assert usage.completion_tokens == len(text.split())
            embedded = await openai.embeddings.create(model="llama-3.1-8b", input="hello", dimensions=4)
            assert len(embedded.data[0].embedding) == 4
            assert [model.id async for model in openai.models.list()] == ["llama-3.1-8b"]
            await openai.close()
            anthropic = AsyncAnthropic(base_url=node.url, api_key="none", max_retries=0)
            async with anthropic.messages.stream(
                model="llama-3.1-8b", max_tokens=5, messages=messages
            ) as messages_stream:
                final = await messages_stream.get_final_message()
            assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 5)
            await anthropic.close()

    run(scene())


def test_the_time_is_that_of_the_table(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM, time_scale=0.1) as (node, client):
            ask = {"prompt": "x" * 4000, "max_tokens": 100, "ignore_eos": True}
            await client.post("/v1/completions", json=ask)
            done = node.stats.log[0]
            assert done.computed_at is not None
            assert done.started_at is not None
            expected = IterationTimes().alone(1000, 100)  # 1.86 s
            assert done.seconds == pytest.approx(expected)
            assert done.computed_at - done.started_at == pytest.approx(expected, abs=1e-3)  # exact: by iterations
            assert (done.tokens_in, done.tokens_out) == (1000, 100)

    run(scene())


def test_what_does_not_fit_the_kv_cache_waits_inside_the_node_and_metrics_say_so(run: Any) -> None:
    async def scene() -> None:
        profile = NodeProfile(kind="llm", kv_tokens=1600, max_context=1600)
        async with one_node(profile, time_scale=0.05) as (node, client):
            ask = {"prompt": "x" * 4000, "max_tokens": 200, "ignore_eos": True}
            jobs = [asyncio.ensure_future(client.post("/v1/completions", json=ask)) for _ in range(3)]
            await until(lambda: node.engine.load()["running"] == 1 and node.engine.load()["waiting"] == 2, "two wait")
            found = parse(node.engine.metrics().decode())  # this instant, while they wait
            assert found["vllm:num_requests_running"] == 1
            assert found["vllm:num_requests_waiting"] == 2
            assert 0.62 <= found["vllm:kv_cache_usage_perc"] <= 0.75
            info = next(name for name in found if name.startswith("vllm:cache_config_info"))
            assert "('block_size', '16')" in info
            assert "('num_gpu_blocks', '100')" in info
            assert [(await job).status_code for job in jobs] == [200] * 3
            ends = [each.computed_at for each in node.stats.log]
            assert ends == sorted(ends)
            found = await samples(client)
            assert found["vllm:kv_cache_usage_perc"] == 0
            assert found["vllm:prompt_tokens_total"] == 3000
            assert found["vllm:generation_tokens_total"] == 600
            assert found["vllm:request_success_total[('finished_reason', 'length')]"] == 3
            assert found["vllm:time_to_first_token_seconds_count"] == 3
            assert found["vllm:e2e_request_latency_seconds_bucket[('le', '+Inf')]"] == 3

    run(scene())


def test_a_client_that_leaves_stops_its_job_at_once(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM, time_scale=1.0) as (node, client):
            for stream in (True, False):
                raw = await Raw.open(node)
                ask = {"prompt": "x" * 4000, "max_tokens": 20_000, "ignore_eos": True, "stream": stream}
                raw.post("/v1/completions", json.dumps(ask).encode())
                await until(lambda: node.engine.load()["running"] == 1, "it runs")
                raw.close()
                await until(lambda: node.engine.load()["running"] == 0, "it stops", limit=2)
                assert node.engine.load()["kv_usage"] == 0
            assert node.stats.aborted == 2
            assert node.stats.log[0].tokens_out < 20_000
            assert (await samples(client))["vllm:request_success_total[('finished_reason', 'abort')]"] == 2

    run_on_both(scene())


def test_a_queue_limit_answers_503_in_the_words_of_vllm(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="llm", queue_limit=1), time_scale=1.0) as (node, client):
            raw = await Raw.open(node)
            raw.post("/v1/completions", b'{"prompt": "x", "max_tokens": 9999, "ignore_eos": true}')
            await until(lambda: node.engine.load()["running"] == 1, "it runs")
            refused = await client.post("/v1/chat/completions", json=HELLO)
            assert refused.status_code == 503
            error = refused.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("Service Unavailable", 503, None)
            assert error["message"].startswith("The engine is currently busy and cannot accept new requests.")
            overloaded = await client.post("/v1/messages", json={**HELLO, "max_tokens": 1})
            assert overloaded.json()["error"]["type"] == "overloaded_error"
            found = await samples(client)
            assert found["vllm:admission_rejections_total[('reason', 'max_num_queued_reqs')]"] == 2
            raw.close()

    run(scene())


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "says"),
    [
        ("/v1/chat/completions", {**HELLO, "model": "gpt"}, 404, "NotFoundError", "The model `gpt` does not exist."),
        ("/v1/chat/completions", {}, 400, "BadRequestError", "messages"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": 0}, 400, "BadRequestError", "at least 1"),
        ("/v1/chat/completions", {**HELLO, "n": 0}, 400, "BadRequestError", "n must be from 1"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": 40_000}, 400, "BadRequestError", "context length is 32768"),
        ("/v1/completions", {"prompt": "x" * 140_000}, 400, "BadRequestError", "context length is 32768"),
        ("/v1/completions", {"prompt": [{}]}, 400, "BadRequestError", "prompt: must be"),
        ("/v1/embeddings", {"input": []}, 400, "BadRequestError", "input: must be"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, 400, "BadRequestError", "dimensions must be"),
        ("/v1/messages", {**HELLO, "max_tokens": 5, "model": "gpt"}, 404, "not_found_error", "does not exist"),
    ],
)
def test_bad_requests(run: Any, path: str, body: Any, status: int, kind: str, says: str) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, client):
            answer = await client.post(path, json=body)
            assert answer.status_code == status
            error = answer.json()["error"]
            assert error["type"] == kind
            assert says in error["message"]
            assert (node.stats.failed, node.engine.load()["running"]) == (1, 0)

    run(scene())


def test_health_version_and_models(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="llm", models=("a", "b/c"))) as (_, client):
            assert (await client.get("/health")).content == b""
            assert "version" in (await client.get("/version")).json()
            models = (await client.get("/v1/models")).json()["data"]
            assert [(model["id"], model["owned_by"], model["max_model_len"]) for model in models] == [
                ("a", "vllm", 32768),
                ("b/c", "vllm", 32768),
            ]
            assert (await client.get("/v1/models/b/c")).json()["id"] == "b/c"
            assert (await client.get("/v1/models/d")).json()["error"]["code"] == 404

    run(scene())


def test_the_kv_cache_follows_the_card_and_a_small_card_is_refused(run: Any) -> None:
    async def scene() -> None:
        async with one_node(LLM) as (node, _):
            assert node.engine.load()["kv_tokens"] == 41_408
        async with one_node(NodeProfile(kind="llm", gpu_memory=80_000_000_000)) as (node, _):
            assert node.engine.load()["kv_tokens"] == 425_920
        with pytest.raises(EmulatorError, match="leaves no room for its KV cache"):
            async with one_node(NodeProfile(kind="llm", gpu_memory=12_000_000_000)):
                pass

    run(scene())
