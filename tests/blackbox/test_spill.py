"""T61: bodies too large for the memory are held on disk, and looked into, renamed and sent again all the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
from pathlib import Path

import pytest

from steelyard.proxy.request_body import SPILL_AT
from steelyard.service import CannotStart
from tests.blackbox.fakenode import Answer, Received
from tests.blackbox.test_growth import resident
from tests.blackbox.world import JSON, World, chat, eventually, post_chat, request

FORM = {"Content-Type": "multipart/form-data; boundary=bound"}
SOUND = b"\x00\r\n--boundary-like\r\n--boun" + bytes(range(256)) * 4096


def form(sound: bytes, model: bytes = b"m", model_last: bool = True) -> bytes:
    """A transcription of a sound."""
    file = b'--bound\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n' % sound
    name = b'--bound\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model
    return (file + name if model_last else name + file) + b"--bound--\r\n"


def large(size: int) -> bytes:
    return (SOUND * (size // len(SOUND) + 1))[:size]


async def echo_digest(received: Received) -> None:
    """Answers with what came, without keeping it."""
    digest, size = hashlib.sha256(), 0
    while not received.complete:
        await received.peer.until(lambda: bool(received.body) or received.complete or received.peer.ended, 50)
        digest.update(received.body)
        size += len(received.body)
        received.body.clear()
        if received.peer.ended:
            return
    digest.update(received.body)
    size += len(received.body)
    body = json.dumps({"text": digest.hexdigest(), "size": size, "model": "m"}).encode()
    received.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("model_last", [False, True])
async def test_a_large_form_reaches_its_node_as_it_was_sent(
    world: World, tmp_path: Path, framing: str, model_last: bool
) -> None:
    node = await world.node(script=echo_digest)
    spool = tmp_path / "spool"
    spool.mkdir()
    running = await world.serve(node, limits__body_directory=str(spool))
    body = form(large(3 * SPILL_AT), model_last=model_last)
    client = await running.client()
    if framing == "length":
        client.send(request("POST", "/v1/audio/transcriptions", FORM, body))
    else:
        pieces = [body[start : start + 70_001] for start in range(0, len(body), 70_001)]
        client.send(request("POST", "/v1/audio/transcriptions", FORM, chunks=pieces))
    answer = json.loads(bytes((await client.answer("POST")).body))
    assert answer["text"] == hashlib.sha256(body).hexdigest()
    assert (await running.line())["bytes_in"] == len(body)
    assert list(spool.iterdir()) == [], "the file has no name"


async def test_300_megabytes_take_no_memory(world: World) -> None:
    node = await world.node(script=echo_digest)
    running = await world.serve(node, limits__body="400MB")
    client = await running.client()
    before = resident()
    body = form(b"")
    head, tail = body[: body.index(b"\r\n\r\n") + 4], body[body.index(b"\r\n\r\n") + 4 :]
    piece, count = large(1 << 20), 300
    digest = hashlib.sha256(head)
    client.send(request("POST", "/v1/audio/transcriptions", {**FORM, "Content-Length": str(len(body) + (count << 20))}))
    client.send(head)
    most = 0
    for _ in range(count):
        await client.send_gently(piece)
        digest.update(piece)
        most = max(most, resident())
    digest.update(tail)
    client.send(tail)
    answer = json.loads(bytes((await client.answer("POST", patience=45)).body))
    most = max(most, resident())
    assert answer["text"] == digest.hexdigest()
    assert most - before < 60 << 20, f"{(most - before) >> 20} MiB"


async def test_a_large_form_is_renamed_and_sent_again(world: World) -> None:
    busy, free = await world.node(Answer(status=503, body=b"busy")), await world.node(script=echo_digest)
    running = await world.serve(busy, free, aliases={"whisper-1": "m"}, defaults__policy="round-robin")
    sound = large(2 * SPILL_AT)
    for _ in range(2):
        answer = await running.ask(request("POST", "/v1/audio/transcriptions", FORM, form(sound, b"whisper-1")))
        document = json.loads(bytes(answer.body))
        assert document["text"] == hashlib.sha256(form(sound, b"m")).hexdigest()
        assert document["model"] == "whisper-1"
    assert bytes(busy.log[0].body) == form(sound, b"m")


async def test_large_json_too(world: World) -> None:
    node = await world.node(script=echo_digest)
    running = await world.serve(node, aliases={"gpt-4": "m"})
    body = chat("gpt-4", content="x" * (2 * SPILL_AT))
    answer = await running.ask(request("POST", "/v1/chat/completions", JSON, body))
    assert json.loads(bytes(answer.body))["text"] == hashlib.sha256(body.replace(b'"gpt-4"', b'"m"')).hexdigest()


async def test_a_node_that_takes_it_slowly_is_waited_for_and_memory_does_not_grow(world: World) -> None:
    gate = asyncio.Event()

    async def slow(received: Received) -> None:
        received.peer.pause()
        await gate.wait()
        received.peer.resume()
        await echo_digest(received)

    node = await world.node(script=slow)
    running = await world.serve(node)
    body = form(large(5 * SPILL_AT))
    client = await running.client()
    client.send(request("POST", "/v1/audio/transcriptions", FORM, body))
    await eventually(lambda: node.log)
    await asyncio.sleep(0.3)
    (upstream,) = running.gateway.upstreams.values()
    assert sum(connection.transport.get_write_buffer_size() for connection in upstream.open) < 1 << 20
    assert running.gateway.body_memory < 1 << 20
    assert running.gateway.body_disk == len(body)
    gate.set()
    assert json.loads(bytes((await client.answer("POST")).body))["text"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("when", ["while it comes", "in line", "while it is sent", "answered early"])
async def test_nothing_is_left_on_disk(world: World, when: str) -> None:
    async def stop(received: Received) -> None:
        received.peer.pause()
        if when == "answered early":
            answer = Answer(status=413, body=b"no")
            received.send(answer.head() + answer.body)
            received.peer.fin()
            return
        await received.gone(30)

    node = await world.node(script=stop)
    running = await world.serve({"name": node.name, "url": node.url, "engine": "vllm", "max_in_flight": 1})
    client = await running.client()
    body = form(large(4 * SPILL_AT))
    if when == "in line":
        first = await running.client()
        first.send(post_chat())
        await eventually(lambda: node.log)
    sent = body[: 2 * SPILL_AT] if when == "while it comes" else body
    client.send(request("POST", "/v1/audio/transcriptions", {**FORM, "Content-Length": str(len(body))}) + sent)
    if when == "answered early":
        answer = await client.answer("POST")
        assert answer.status in (413, 502)
    else:
        await eventually(lambda: running.gateway.body_disk > SPILL_AT)
        if when == "in line":
            await eventually(lambda: running.gateway.balancer.queue.length == 1)
        elif when == "while it is sent":
            await eventually(lambda: node.log)
    client.rst()
    await eventually(lambda: running.gateway.body_disk == 0)
    if when == "in line":
        first.rst()


async def test_all_bodies_on_disk_have_a_limit(world: World) -> None:
    running = await world.serve(await world.node(), limits__body_disk="20MB")
    client = await running.client()
    client.send(request("POST", "/v1/audio/transcriptions", FORM, form(large(3 * SPILL_AT))))
    answer = await client.answer("POST")
    assert answer.status == 503
    assert b"held on disk" in answer.body
    assert (await running.ask(post_chat())).status == 200


@pytest.mark.parametrize("at", ["the start", "a write"])
async def test_a_disk_that_takes_no_more_is_a_clean_refusal(world: World, tmp_path: Path, at: str) -> None:
    node = await world.node()
    spool = tmp_path / "spool"
    spool.mkdir()
    running = await world.serve(node, limits__body_directory=str(spool))
    client = await running.client()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if at == "the start":
        spool.rmdir()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SPILL_AT // 2, unlimited[1]))
    try:
        client.send(request("POST", "/v1/audio/transcriptions", FORM, form(large(2 * SPILL_AT))))
        answer = await client.answer("POST")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert answer.status == 503
    assert b"a large request cannot be held on disk: " in answer.body
    assert not node.log
    assert running.gateway.body_disk == 0
    assert (await running.ask(post_chat())).status == 200


async def test_a_directory_that_cannot_be_used_is_said_at_the_start(world: World, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"cannot hold large requests in .*none'?: no such file or directory"):
        await world.serve(await world.node(), limits__body_directory=str(tmp_path / "none"))
