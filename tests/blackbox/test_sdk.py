"""The clients that people use: the official SDKs of OpenAI and Anthropic, httpx, and curl."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.blackbox.fakenode import Answer, Received, delta, play, sse, stream
from tests.blackbox.wire import Message
from tests.blackbox.world import Running, World, eventually, node_entry, request

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
SOUND = b"RIFF\x00\x00\x00\x00WAVEfmt \r\n--boundary\r\n" + bytes(range(256)) * 500


def answered(document: object) -> Answer:
    return Answer(body=json.dumps(document).encode())


CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hé!"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hé!"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hé"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


def event_stream(pieces: list[bytes], **knobs: Any) -> Answer:
    return Answer(headers=(("Content-Type", "text/event-stream"),), chunks=pieces, framing="chunked", **knobs)


def anthropic_events(events: list[dict[str, Any]], **knobs: Any) -> Answer:
    pieces = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    return event_stream(pieces, **knobs)


async def engine(received: Received) -> None:
    """Answers like an engine that speaks both APIs."""
    body = await received.whole()
    asked = json.loads(body) if body.startswith(b"{") else {}
    path = received.path
    if path == "/v1/chat/completions":
        answer = event_stream(sse(delta("Hé"), delta("!"), {**CHAT, "object": "chat.completion.chunk", "choices": []}))
        answer = answer if asked.get("stream") else answered(CHAT)
    elif path == "/v1/messages":
        answer = anthropic_events(MESSAGE_EVENTS) if asked.get("stream") else answered(MESSAGE)
    elif path == "/v1/messages/count_tokens":
        answer = answered({"input_tokens": 7})
    elif path == "/v1/embeddings":
        vectors = [{"object": "embedding", "index": i, "embedding": [0.5, 0.25]} for i, _ in enumerate(asked["input"])]
        answer = answered(
            {"object": "list", "data": vectors, "model": "m", "usage": {"prompt_tokens": 2, "total_tokens": 2}}
        )
    elif path == "/v1/images/generations":
        answer = answered({"created": 1, "data": [{"b64_json": base64.b64encode(PICTURE).decode()}]})
    elif path == "/v1/audio/transcriptions":
        assert SOUND in body
        answer = answered({"text": "hello there"})
    elif path == "/v1/audio/speech":
        answer = Answer(
            headers=(("Content-Type", "audio/mpeg"),), chunks=[SOUND[:1000], SOUND[1000:]], framing="chunked"
        )
    else:
        answer = Answer(status=404, body=b"{}")
    await play(received, answer)


@asynccontextmanager
async def openai_client(running: Running, retries: int = 0, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=running.base_url + "/v1", api_key=key, max_retries=retries, timeout=20
    ) as client:
        yield client


@asynccontextmanager
async def anthropic_client(running: Running, retries: int = 0) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=running.base_url, api_key="none", max_retries=retries, timeout=20
    ) as client:
        yield client


USER: Any = [{"role": "user", "content": "hello"}]


async def test_openai_speaks_through_the_gateway(world: World) -> None:
    running = await world.serve(await world.node(script=engine))
    async with openai_client(running) as client:
        chat = await client.chat.completions.create(model="m", messages=USER)
        assert chat.choices[0].message.content == "Hé!"
        assert chat.usage is not None
        assert chat.usage.total_tokens == 5

        pieces = []
        async for event in await client.chat.completions.create(model="m", messages=USER, stream=True):
            pieces += [choice.delta.content for choice in event.choices]
        assert "".join(piece or "" for piece in pieces) == "Hé!"

        vectors = await client.embeddings.create(model="m", input=["a", "b"], encoding_format="float")
        assert [item.embedding for item in vectors.data] == [[0.5, 0.25]] * 2

        picture = await client.images.generate(model="m", prompt="a cat", size="512x512")
        assert picture.data is not None
        assert base64.b64decode(picture.data[0].b64_json or "") == PICTURE

        text = await client.audio.transcriptions.create(model="m", file=("a.wav", SOUND))
        assert text.text == "hello there"

        async with client.audio.speech.with_streaming_response.create(
            model="m", input="hello", voice="alloy"
        ) as speech:
            assert await speech.read() == SOUND

        assert [model.id async for model in client.models.list()] == ["m"]
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=USER)
        assert raw.headers["x-steelyard-node"] == "n1"
    await running.at_rest()
    assert [line["outcome"] for line in running.lines()] == ["ok"] * 8
    line = running.lines()[1]
    assert (line["stream"], line["prompt_tokens"], line["completion_tokens"]) == (True, 3, 2)


async def test_openai_s_blocking_client_too(world: World) -> None:
    running = await world.serve(await world.node(script=engine))

    def talk() -> str:
        with openai.OpenAI(base_url=running.base_url + "/v1", api_key="none", max_retries=0) as client:
            events = client.chat.completions.create(model="m", messages=USER, stream=True)
            return "".join(choice.delta.content or "" for event in events for choice in event.choices)

    assert await asyncio.to_thread(talk) == "Hé!"


async def test_anthropic_speaks_through_the_gateway(world: World) -> None:
    running = await world.serve(await world.node(script=engine))
    async with anthropic_client(running) as client:
        message = await client.messages.create(model="m", max_tokens=10, messages=USER)
        assert message.content[0].type == "text"
        assert message.content[0].text == "Hé!"
        async with client.messages.stream(model="m", max_tokens=10, messages=USER) as events:
            assert [piece async for piece in events.text_stream] == ["Hé", "!"]
            final = await events.get_final_message()
        assert (final.usage.input_tokens, final.usage.output_tokens) == (3, 2)
        counted = await client.messages.count_tokens(model="m", messages=USER)
        assert counted.input_tokens == 7
        assert [model.id async for model in client.models.list()] == ["m"]


OPENAI_ERRORS: list[tuple[int, type[openai.APIStatusError]]] = [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (403, openai.PermissionDeniedError),
    (404, openai.NotFoundError),
    (409, openai.ConflictError),
    (422, openai.UnprocessableEntityError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
    (503, openai.InternalServerError),
]


@pytest.mark.parametrize(("status", "error"), OPENAI_ERRORS)
async def test_a_node_s_error_reaches_openai_s_client_as_it_is(
    world: World, status: int, error: type[openai.APIStatusError]
) -> None:
    body = json.dumps({"error": {"message": "from the node", "type": "t", "code": "c", "param": "p"}}).encode()
    running = await world.serve(await world.node(Answer(status=status, body=body)))
    async with openai_client(running) as client:
        with pytest.raises(error, match="from the node") as raised:
            await client.chat.completions.create(model="m", messages=USER)
    assert (raised.value.code, raised.value.param, raised.value.type) == ("c", "p", "t")


def none_left(running: Running) -> None:
    for node in running.world.nodes:
        node.refuse()


LONG = [{"role": "user", "content": "why? " * 300}]
OWN_ERRORS: list[
    tuple[str, dict[str, Any], Callable[[Running], None] | None, str, type[openai.APIStatusError], str]
] = [
    (
        "key",
        {"auth__keys": [{"key": "right-key-1", "tenant": "t"}]},
        None,
        "m",
        openai.AuthenticationError,
        "invalid_api_key",
    ),
    ("model", {}, None, "nope", openai.NotFoundError, "unknown_model"),
    ("body", {"limits__body": "1KB"}, None, "m", openai.APIStatusError, "body_too_large"),
    ("node", {}, none_left, "m", openai.InternalServerError, "node_broke"),
]


@pytest.mark.parametrize(
    ("what", "changes", "act", "model", "error", "code"), OWN_ERRORS, ids=[e[0] for e in OWN_ERRORS]
)
async def test_the_gateway_s_own_errors_are_the_sdk_s_exceptions(
    world: World,
    what: str,
    changes: dict[str, Any],
    act: Callable[[Running], None] | None,
    model: str,
    error: Any,
    code: str,
) -> None:
    running = await world.serve(await world.node(script=engine), telemetry__interval="1h", **changes)
    if act is not None:
        act(running)
        await asyncio.sleep(0.05)
    async with openai_client(running, key="wrong-key") as client:
        with pytest.raises(error) as raised:
            await client.chat.completions.create(model=model, messages=LONG if what == "body" else USER)
    assert raised.value.code == code
    assert raised.value.request_id


async def test_a_broken_stream_raises_in_both_sdks(world: World) -> None:
    node = await world.node(stream("a", "b", "c", cut_after=2))
    running = await world.serve(node)
    async with openai_client(running) as client:
        events = await client.chat.completions.create(model="m", messages=USER, stream=True)
        for expected in ("a", "b"):
            assert (await anext(events)).choices[0].delta.content == expected
        with pytest.raises(openai.APIError, match="broke off"):
            await anext(events)
    node.answer = anthropic_events(MESSAGE_EVENTS, cut_after=3)
    async with anthropic_client(running) as other:  # noqa: SIM117 - the one makes the other
        async with other.messages.stream(model="m", max_tokens=10, messages=USER) as stream_of_texts:
            texts = stream_of_texts.text_stream
            assert await anext(texts) == "Hé"
            with pytest.raises(anthropic.APIError, match="broke off"):
                await anext(texts)


async def test_the_gateway_s_own_errors_are_anthropic_s_exceptions(world: World) -> None:
    running = await world.serve(await world.node(script=engine))
    async with anthropic_client(running) as client:
        with pytest.raises(anthropic.NotFoundError, match="does not exist") as raised:
            await client.messages.create(model="nope", max_tokens=10, messages=USER)
        assert raised.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


async def test_a_full_queue_is_retried_by_the_sdk_no_more_often_and_no_sooner_than_it_is_told(world: World) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node_entry(node, max_in_flight=1), defaults__queue__size=0)
    holding = await running.client()
    # One token: the node is predicted to be free again soon, and the client told to come back after a second.
    asked = {"model": "m", "messages": USER, "max_tokens": 1}
    holding.send(request("POST", "/v1/chat/completions", body=json.dumps(asked).encode()))
    await eventually(lambda: node.log)
    async with openai_client(running, retries=2) as client:
        began = time.monotonic()
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(model="m", messages=USER, max_tokens=1)
        lasted = time.monotonic() - began
    told = int(raised.value.response.headers["retry-after"])
    assert running.gateway.begun == 1 + 3
    # The client may shorten or lengthen a wait a little at random.
    assert lasted >= 2 * told * 0.7
    holding.fin()


async def test_an_sdk_that_is_cancelled_frees_the_node(world: World) -> None:
    node = await world.node(stream("a", "b", hang="mid"))
    running = await world.serve(node)
    async with openai_client(running) as client:

        async def read() -> None:
            async for _ in await client.chat.completions.create(model="m", messages=USER, stream=True):
                pass

        reading = asyncio.create_task(read())
        await eventually(lambda: node.log and node.log[0].peer.sent)
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: node.log[0].aborted_at)


# -- httpx and curl


async def test_httpx_with_many_requests_on_few_connections(world: World) -> None:
    nodes = [await world.node(script=engine) for _ in range(2)]
    running = await world.serve(*nodes)
    limits = httpx.Limits(max_connections=8)
    async with httpx.AsyncClient(base_url=running.base_url, limits=limits, timeout=30) as client:
        answers = await asyncio.gather(
            *(client.post("/v1/chat/completions", json={"model": "m", "messages": USER}) for _ in range(100))
        )
    assert [answer.status_code for answer in answers] == [200] * 100
    assert {answer.json()["id"] for answer in answers} == {"chatcmpl-1"}
    assert running.gateway.counters.connections <= 8


async def curl(program: str, *arguments: str, data: bytes | None = None) -> tuple[int, bytes, str]:
    """Exit code, output and messages of curl."""
    process = await asyncio.create_subprocess_exec(
        program,
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, messages = await process.communicate(data)
    return process.returncode or 0, output, messages.decode()


async def test_curl_with_a_body_a_stream_and_a_head(world: World, need: Callable[[str], str]) -> None:
    program = need("curl")
    running = await world.serve(await world.node(script=engine))
    url = running.base_url + "/v1/chat/completions"
    kind = ("-H", "Content-Type: application/json")
    body = json.dumps({"model": "m", "messages": USER})
    assert await curl(program, url, *kind, "-d", body) == (0, json.dumps(CHAT).encode(), "")
    streaming = json.dumps({"model": "m", "messages": USER, "stream": True})
    code, output, _ = await curl(program, "-N", url, *kind, "-d", streaming)
    assert code == 0
    assert output.endswith(b"data: [DONE]\n\n")
    # The same over HTTP/1.0, and with a chunked request.
    code, old, _ = await curl(program, "--http1.0", "-N", url, *kind, "-d", streaming)
    assert (code, old) == (0, output)
    chunked = await curl(program, url, *kind, "-H", "Transfer-Encoding: chunked", "-d", body)
    assert chunked[:2] == (0, json.dumps(CHAT).encode())
    code, head, _ = await curl(program, "-I", running.base_url + "/v1/models")
    assert code == 0
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    code, both, _ = await curl(program, url, url, *kind, "-d", body, "-w", "%{num_connects}")
    assert code == 0
    assert both == json.dumps(CHAT).encode() + b"1" + json.dumps(CHAT).encode() + b"0"


async def test_curl_with_http2_wished_for_keeps_its_body(world: World, need: Callable[[str], str]) -> None:
    program = need("curl")
    running = await world.serve(await world.node(script=engine))
    url = running.base_url + "/v1/chat/completions"
    headers = ("-H", "Connection: Upgrade, HTTP2-Settings", "-H", "Upgrade: h2c", "-H", "HTTP2-Settings: AAMAAABk")
    body = json.dumps({"model": "m", "messages": USER})
    assert (await curl(program, url, *headers, "-d", body))[:2] == (0, json.dumps(CHAT).encode())


async def test_curl_uploads_with_expect_and_is_refused_before_it_does(world: World, need: Callable[[str], str]) -> None:
    program = need("curl")
    node = await world.node(script=engine)
    running = await world.serve(node, limits__body="4MiB")
    url = running.base_url + "/v1/audio/transcriptions"
    form = ("-F", "model=m", "-F", "file=@-;filename=a.wav", "-H", "Expect: 100-continue", "--expect100-timeout", "15")
    began = time.monotonic()
    code, output, messages = await curl(program, url, *form, data=SOUND * 20)
    assert (code, json.loads(output)) == (0, {"text": "hello there"}), messages
    assert time.monotonic() - began < 12, "the 100 came, curl did not wait for its own limit"
    code, output, _ = await curl(program, url, *form, "-w", "\n%{http_code} %{size_upload}", data=bytes(6 << 20))
    assert code == 0
    document, figures = output.rsplit(b"\n", 1)
    assert json.loads(document)["error"]["code"] == "body_too_large"
    assert figures == b"413 0"


async def test_curl_sees_a_broken_answer_as_broken(world: World, need: Callable[[str], str]) -> None:
    program = need("curl")
    node = await world.node(stream("a", "b", "c", cut_after=2))
    running = await world.serve(node)
    body = json.dumps({"model": "m", "messages": USER, "stream": True})
    for version in ("--http1.1", "--http1.0"):
        code, output, _ = await curl(program, version, "-N", running.base_url + "/v1/chat/completions", "-d", body)
        assert code in (18, 56), "partial file, or a reset"
        assert output.startswith(sse(delta("a"))[0])


async def test_curl_that_is_killed_aborts_the_node(world: World, need: Callable[[str], str]) -> None:
    """T06 as people do it."""
    program = need("curl")
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node)
    body = json.dumps({"model": "m", "messages": USER})
    process = await asyncio.create_subprocess_exec(program, "-s", running.base_url + "/v1/chat/completions", "-d", body)
    await eventually(lambda: node.executions)
    process.kill()
    await process.wait()
    await eventually(lambda: node.log[0].aborted_at)
    assert (await running.line())["status"] == 499


__all__ = ["Message"]
