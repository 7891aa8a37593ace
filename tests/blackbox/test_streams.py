"""Streams: who goes away, what breaks, what stalls, and what the other side sees of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.blackbox.deaf import deaf
from tests.blackbox.fakenode import Answer, Received, delta, sse, stream
from tests.blackbox.wire import request
from tests.blackbox.world import JSON, World, eventually, post_chat

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@BOTH_LOOPS
async def test_T01_clients_that_leave_after_the_first_chunk_leave_nothing_behind(world: World, loop: str) -> None:
    nodes = [await world.node(stream(*"abcdef", gap=0.5)) for _ in range(3)]
    running = await world.serve(*nodes)

    async def leave(rst: bool) -> None:
        client = await running.client()
        client.send(post_chat(stream=True))
        head = await client.head()
        await client.body(head, 10)
        if rst:
            client.rst()
        else:
            client.fin()

    await asyncio.gather(*(leave(number % 2 == 0) for number in range(200)))
    await running.at_rest(patience=2)
    assert [line["outcome"] for line in running.lines()] == ["client_gone"] * 200
    assert {line["status"] for line in running.lines()} == {499}
    await eventually(lambda: all(r.aborted_at for node in nodes for r in node.log), "every node saw the abort")
    for node in nodes:
        node.forget()
        node.answer = Answer()
    for _ in range(60):
        assert (await running.ask(post_chat())).status == 200
    shares = [len(node.log) for node in nodes]
    # Binomial with p = 1/3: 20 +- 3.7.
    assert min(shares) >= 5, shares


@BOTH_LOOPS
async def test_T02_a_client_that_leaves_while_the_node_is_silent_is_seen_at_once(world: World, loop: str) -> None:
    node = await world.node(stream("a", "b", hang="mid"))
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat(stream=True))
    await client.body(await client.head(), 10)
    left = asyncio.get_running_loop().time()
    client.fin()
    await eventually(lambda: node.log[0].aborted_at is not None, "the node saw the abort")
    assert node.log[0].aborted_at is not None
    assert node.log[0].aborted_at - left < 0.5


@pytest.mark.parametrize("streamed", [False, True])
async def test_T06_a_client_that_leaves_before_the_head_aborts_the_node(world: World, streamed: bool) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat(stream=streamed))
    await eventually(lambda: node.log and node.log[0].complete, "the node has the request")
    client.rst()
    await eventually(lambda: node.log[0].aborted_at is not None, "the node saw the abort")
    line = await running.line()
    assert (line["status"], line["outcome"]) == (499, "client_gone")
    assert node.executions == 1


# -- T37: the node breaks off

CUTS = {
    "by FIN without a last chunk": {"cut_after": 2, "cut": "fin"},
    "by RST": {"cut_after": 2, "cut": "rst"},
    "by a stall": {"hang": "mid"},
}


def errors_in(body: bytes) -> list[dict[str, object]]:
    """The error objects in the events of a stream; every event must be valid JSON."""
    found = []
    for event in body.split(b"\n\n"):
        for line in event.splitlines():
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                document = json.loads(line[5:])
                if "error" in document:
                    found.append(document["error"])
    return found


@pytest.mark.parametrize("how", CUTS)
async def test_T37_a_stream_that_breaks_off_ends_with_an_error_event_and_never_with_a_last_chunk(
    world: World, how: str
) -> None:
    node = await world.node(stream("a", "b", "c", **CUTS[how]))
    running = await world.serve(node, defaults__timeouts__idle="300ms")
    client = await running.client()
    client.send(post_chat(stream=True))
    answer = await client.rest(await client.head())
    assert answer.framing == "chunked"
    assert not answer.complete
    assert client.ended
    errors = errors_in(bytes(answer.body))
    assert len(errors) == 1
    expected = "node_silent" if "stall" in how else "node_broke"
    assert errors[0]["code"] == expected
    assert bytes(answer.body).startswith(sse(delta("a"))[0])
    line = await running.line()
    assert (line["outcome"], line["status"]) == (expected, 200)
    assert node.executions == 1


@pytest.mark.parametrize("how", CUTS)
async def test_T37_an_anthropic_stream_gets_its_own_error_event(world: World, how: str) -> None:
    pieces = [b'event: ping\ndata: {"type":"ping"}\n\n'] * 3
    knobs = CUTS[how]
    node = await world.node(
        Answer(headers=(("Content-Type", "text/event-stream"),), chunks=pieces, framing="chunked", **knobs)
    )
    running = await world.serve(node, defaults__timeouts__idle="300ms")
    client = await running.client()
    body = b'{"model":"m","max_tokens":5,"stream":true,"messages":[]}'
    client.send(request("POST", "/v1/messages", {"Content-Type": "application/json"}, body))
    answer = await client.rest(await client.head())
    assert not answer.complete
    last = bytes(answer.body).split(b"\n\n")[-2].split(b"\n")
    assert last[0] == b"event: error"
    document = json.loads(last[1].removeprefix(b"data: "))
    assert document["type"] == "error"
    assert document["error"]["type"] in ("api_error", "timeout_error")


@pytest.mark.parametrize("cut", ["fin", "rst"])
async def test_T37_a_stream_that_breaks_in_the_middle_of_an_event_still_ends_with_a_valid_error_event(
    world: World, cut: str
) -> None:
    whole, broken = sse(delta("a"), done=False)[0], b'data: {"choices": [{"del'
    node = await world.node(
        Answer(
            headers=(("Content-Type", "text/event-stream"),),
            chunks=[whole, broken, b""],
            framing="chunked",
            cut_after=2,
            cut=cut,
        )
    )
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat(stream=True))
    answer = await client.rest(await client.head())
    assert not answer.complete
    events = bytes(answer.body).split(b"\n\n")
    assert events[0] + b"\n\n" == whole
    # The broken event cannot be taken back, but it must not swallow the error.
    error = json.loads(events[-2].removeprefix(b"data: "))["error"]
    assert error["code"] == "node_broke"


@pytest.mark.parametrize("how", CUTS)
async def test_T37_a_plain_answer_that_breaks_off_is_never_whole(world: World, how: str) -> None:
    for framing in ("chunked", "length", "close"):
        if framing == "close" and CUTS[how].get("cut") == "fin":
            continue  # the legal end of such an answer
        node = await world.node(
            Answer(chunks=[b'{"a":', b'"b",', b'"c":1}'], framing=framing, **CUTS[how])  # type: ignore[arg-type]
        )
        running = await world.serve(node, defaults__timeouts__idle="300ms")
        client = await running.client()
        client.send(post_chat())
        answer = await client.rest(await client.head())
        assert not answer.complete, framing
        assert client.ended
        assert b"error" not in answer.body, "nothing is put into a plain answer"
        line = await running.line()
        assert line["outcome"] in ("node_broke", "node_silent")


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "application/octet-stream"])
async def test_T37_an_http10_client_sees_a_reset_and_not_an_end(world: World, how: str, content_type: str) -> None:
    knobs = CUTS[how]
    node = await world.node(
        Answer(headers=(("Content-Type", content_type),), chunks=[b"data: {}\n\n"] * 3, framing="chunked", **knobs)
    )
    running = await world.serve(node, defaults__timeouts__idle="300ms")
    client = await running.client()
    client.send(post_chat(stream="event" in content_type, version="1.0"))
    head = await client.head()
    assert head.framing == "close"
    await client.rest(head)
    assert client.reset, "only a reset tells a broken answer from a whole one"
    assert not head.complete


# -- T38: three ways to hang, three bounds


async def test_T38_a_node_that_does_not_accept_ends_with_504_that_names_the_phase(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, defaults__timeouts__connect="300ms", telemetry__interval="1h")
    async with deaf(node):
        answer = await running.ask(post_chat())
    assert answer.status == 504
    error = json.loads(bytes(answer.body))["error"]
    assert error["code"] == "node_silent"
    assert "accept the connection" in error["message"]
    assert (await running.line())["outcome"] == "node_silent"
    assert not node.log


async def test_T38_a_node_without_a_head_ends_with_504_that_names_the_phase(world: World) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node, defaults__timeouts__first_byte="300ms", defaults__timeouts__idle="30s")
    answer = await running.ask(post_chat(stream=True))
    assert answer.status == 504
    error = json.loads(bytes(answer.body))["error"]
    assert error["code"] == "node_silent"
    assert "first byte" in error["message"]
    await eventually(lambda: node.log[0].aborted_at is not None, "the node saw the abort")


async def test_T38_the_limit_of_a_plain_answer_is_not_that_of_a_stream(world: World) -> None:
    node = await world.node(Answer(ttft=0.9))
    running = await world.serve(node, defaults__timeouts__first_byte="200ms", defaults__timeouts__idle="200ms")
    assert (await running.ask(post_chat())).status == 200
    # Ten minutes by default; an embedding is predicted to take far less than a second.
    running.set_timeouts(plain_first_byte=0.3)
    node.answer = Answer(hang="headers")
    answer = await running.ask(request("POST", "/v1/embeddings", JSON, b'{"model":"m","input":"a"}'))
    assert answer.status == 504
    assert json.loads(bytes(answer.body))["error"]["code"] == "node_silent"


async def test_T38_a_head_without_a_first_byte_counts_as_no_first_byte(world: World) -> None:
    async def head_only(received: Received) -> None:
        received.send(stream().head())
        await received.gone(50)

    node = await world.node(script=head_only)
    running = await world.serve(node, defaults__timeouts__first_byte="300ms", defaults__timeouts__idle="30s")
    answer = await running.ask(post_chat(stream=True))
    # The head is held back until there is a first byte: here the client has a clear status instead of half a stream.
    assert answer.complete
    assert answer.status == 504
    assert json.loads(bytes(answer.body))["error"]["code"] == "node_silent"


async def test_T38_a_silent_stream_ends_with_the_idle_limit(world: World) -> None:
    node = await world.node(stream("a", "b", hang="mid"))
    running = await world.serve(node, defaults__timeouts__idle="300ms", defaults__timeouts__first_byte="30s")
    client = await running.client()
    client.send(post_chat(stream=True))
    answer = await client.rest(await client.head())
    assert not answer.complete
    error = errors_in(bytes(answer.body))[0]
    assert error["code"] == "node_silent"
    assert "further byte" in str(error["message"])


async def test_T38_heartbeat_comments_survive_the_idle_limit(world: World) -> None:
    pieces = [b": heartbeat\n\n"] * 12 + sse(delta("a"))
    node = await world.node(
        Answer(headers=(("Content-Type", "text/event-stream"),), chunks=pieces, framing="chunked", gap=0.1)
    )
    running = await world.serve(node, defaults__timeouts__idle="500ms", defaults__timeouts__first_byte="500ms")
    answer = await running.ask(post_chat(stream=True))
    assert answer.complete
    assert bytes(answer.body) == b"".join(pieces)


async def test_T38_the_total_bounds_a_stream_that_never_ends(world: World) -> None:
    node = await world.node(stream(*"abcdefghijklmnopqrstuvwxyz" * 4, gap=0.05))
    running = await world.serve(node, defaults__timeouts__total="400ms")
    client = await running.client()
    client.send(post_chat(stream=True))
    answer = await client.rest(await client.head())
    assert not answer.complete
    assert errors_in(bytes(answer.body))[0]["code"] == "deadline_exceeded"


async def test_T38_the_client_s_own_limit_bounds_any_phase(world: World) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node)
    answer = await running.ask(post_chat(headers={"x-request-timeout": "300ms"}))
    assert answer.status == 504
    assert json.loads(bytes(answer.body))["error"]["code"] == "deadline_exceeded"
    bad = await running.ask(post_chat(headers={"x-request-timeout": "soon"}))
    assert bad.status == 400
    assert b"x-request-timeout" in bad.body
