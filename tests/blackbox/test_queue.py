"""Requests that fit no node just now: they wait in line, for a while, and never for nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from steelyard.proxy.request_body import PENDING_UPLOAD
from tests.blackbox.fakenode import Answer, FakeNode, Received
from tests.blackbox.wire import Client
from tests.blackbox.world import JSON, Running, World, eventually, node_entry, post_chat, request

ANSWER = Answer().head() + Answer().body


class Gate:
    """A node's script: every request waits until it is let through."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Received, asyncio.Event]] = []

    async def __call__(self, received: Received) -> None:
        await received.whole()
        event = asyncio.Event()
        self.waiting.append((received, event))
        gone = asyncio.ensure_future(received.gone(50))
        passed = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({gone, passed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            passed.cancel()
            await asyncio.gather(gone, passed, return_exceptions=True)
        if event.is_set():
            received.send(ANSWER)

    def open(self) -> None:
        """Let the oldest one through."""
        self.waiting.pop(0)[1].set()


async def full(world: World, limit: int = 1, **changes: object) -> tuple[Running, FakeNode, Gate, list[Client]]:
    """A gateway whose only node has as many requests as it may."""
    gate = Gate()
    node = await world.node(script=gate)
    running = await world.serve(node_entry(node, max_in_flight=limit), **changes)
    clients = []
    for number in range(limit):
        client = await running.client()
        client.send(post_chat(user=f"first {number}"))
        clients.append(client)
    await eventually(lambda: len(gate.waiting) == limit)
    return running, node, gate, clients


def waiting(running: Running) -> int:
    return running.gateway.balancer.queue.length


async def line_up(running: Running, count: int, **fields: object) -> list[Client]:
    """So many clients in line, in this order."""
    clients = []
    for number in range(count):
        client = await running.client()
        before = waiting(running)
        client.send(post_chat(user=f"user {number}", **fields))
        await eventually(lambda before=before: waiting(running) == before + 1)
        clients.append(client)
    return clients


async def test_who_comes_first_is_served_first(world: World) -> None:
    running, node, gate, first = await full(world)
    clients = await line_up(running, 10)
    for _ in range(11):
        gate.open()
        await eventually(lambda: gate.waiting or not running.gateway.exchanges)
    for client in [*first, *clients]:
        answer = await client.answer("POST")
        assert answer.status == 200
    assert [received.json["user"] for received in node.log[1:]] == [f"user {number}" for number in range(10)]
    assert int(answer.get("x-steelyard-queue-ms") or b"0") > 0


async def test_a_node_never_has_more_than_it_may(world: World) -> None:
    running, node, gate, first = await full(world, limit=4)
    clients = await line_up(running, 8)
    seen = []
    for _ in range(12):
        seen.append(sum(not received.answered for received in node.log))
        gate.open()
        await asyncio.sleep(0.02)
    for client in [*first, *clients]:
        assert (await client.answer("POST")).status == 200
    assert max(seen) == 4


async def test_who_leaves_the_line_frees_the_place(world: World) -> None:
    running, node, gate, (first,) = await full(world, defaults__queue__size=2)
    one, other = await line_up(running, 2)
    one.rst()
    await eventually(lambda: waiting(running) == 1)
    (third,) = await line_up(running, 1)
    for _ in range(3):
        await eventually(lambda: gate.waiting)
        gate.open()
    for client in (first, other, third):
        assert (await client.answer("POST")).status == 200
    assert node.executions == 3
    await running.at_rest()
    assert sorted(line["outcome"] for line in running.lines()) == ["client_gone", "ok", "ok", "ok"]


async def test_a_full_line_is_a_429_with_retry_after(world: World) -> None:
    running, _, gate, (first,) = await full(world, defaults__queue__size=1)
    (second,) = await line_up(running, 1)
    client = await running.client()
    answer = await client.ask(post_chat())
    assert answer.status == 429
    assert json.loads(bytes(answer.body))["error"]["code"] == "queue_full"
    assert 1 <= int(answer.get("retry-after") or b"0") <= 60
    assert answer.keep_alive
    gate.open()
    await eventually(lambda: gate.waiting)
    gate.open()
    assert (await first.answer("POST")).status == (await second.answer("POST")).status == 200


async def test_without_a_line_nobody_waits(world: World) -> None:
    running, _, gate, (first,) = await full(world, defaults__queue__size=0)
    assert (await running.ask(post_chat())).status == 429
    gate.open()
    await first.answer("POST")


async def test_who_waits_too_long_gets_a_503(world: World) -> None:
    running, _, gate, (first,) = await full(world, defaults__queue__wait="300ms")
    answer = await running.ask(post_chat())
    assert answer.status == 503
    error = json.loads(bytes(answer.body))["error"]
    assert error["code"] == "queue_timeout"
    assert answer.get("retry-after")
    gate.open()
    await first.answer("POST")


async def test_a_deadline_ends_the_waiting_with_a_504(world: World) -> None:
    running, _, gate, (first,) = await full(world)
    answer = await running.ask(post_chat(headers={"x-request-timeout": "300ms"}))
    assert answer.status in (503, 504)
    gate.open()
    await first.answer("POST")


async def test_a_node_that_comes_serves_the_line(world: World) -> None:
    running, node, gate, (first,) = await full(world)
    clients = await line_up(running, 3)
    more = await world.node()
    running.reload(nodes=[node_entry(node, max_in_flight=1), node_entry(more)])
    for client in clients:
        assert (await client.answer("POST")).status == 200
    assert more.executions == 3
    gate.open()
    assert (await first.answer("POST")).status == 200


async def test_a_node_that_dies_with_everything_in_line_does_not_strand_it(world: World) -> None:
    running, node, _gate, (first,) = await full(world, defaults__queue__wait="1s")
    clients = await line_up(running, 3)
    node.refuse()
    answers = [await client.answer("POST") for client in (first, *clients)]
    for answer in answers:
        assert answer.status in (502, 503)
        assert json.loads(bytes(answer.body))["error"]["code"] in ("node_broke", "queue_timeout", "no_node")


async def test_a_raised_limit_serves_the_line(world: World) -> None:
    running, node, gate, (first,) = await full(world)
    clients = await line_up(running, 3)
    running.reload(nodes=[node_entry(node, max_in_flight=4)])
    await eventually(lambda: len(gate.waiting) == 4)
    for _ in range(4):
        gate.open()
    for client in (first, *clients):
        assert (await client.answer("POST")).status == 200


async def test_the_line_of_one_model_does_not_block_another(world: World) -> None:
    running, _, gate, (first,) = await full(world)
    waiting_clients = await line_up(running, 2)
    other = await world.node(models=("other",))
    running.reload(nodes=[*running.document["nodes"], node_entry(other)])
    await eventually(lambda: running.state(other) == "ready")
    assert (await running.ask(post_chat("other"))).status == 200
    for _ in range(3):
        await eventually(lambda: gate.waiting)
        gate.open()
    for client in (first, *waiting_clients):
        assert (await client.answer("POST")).status == 200


async def test_uploads_in_line_count_as_bodies(world: World) -> None:
    running, node, gate, (first,) = await full(world, limits__body_memory="700KB")
    uploads = []
    for _ in range(2):
        client = await running.client()
        client.send(request("POST", "/upload", body=bytes(300_000)))
        uploads.append(client)
    # Of each, what is read before it has to wait: all of it, or a little more than this, as the reads happen to come.
    await eventually(lambda: running.gateway.body_memory > 2 * PENDING_UPLOAD)
    refused = await running.client()
    refused.send(request("POST", "/upload", body=bytes(300_000)))
    answer = await refused.answer("POST")
    assert json.loads(bytes(answer.body))["error"]["code"] == "overloaded"
    for client in (first, *uploads):
        await eventually(lambda: gate.waiting)
        gate.open()
        assert (await client.answer("POST")).status == 200
    assert [len(received.body) for received in node.log[1:]] == [300_000, 300_000]
    assert running.gateway.body_memory == 0


@pytest.mark.parametrize("target", ["/upload", "/v1/chat/completions"])
async def test_chunks_of_a_few_bytes_take_no_more_memory_than_they_are(world: World, target: str) -> None:
    running, node, gate, (first,) = await full(world)
    client = await running.client()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "why? " * 40_000}]}).encode()
    client.send(request("POST", target, JSON, chunks=[body[i : i + 2] for i in range(0, len(body), 2)]))
    await eventually(lambda: waiting(running) == 1)
    (exchange,) = (running_one for running_one in running.exchanges if running_one.attempt is None)
    await eventually(lambda: exchange.received)
    assert len(exchange.content._pieces) < 100
    gate.open()
    await eventually(lambda: gate.waiting)
    gate.open()
    assert (await client.answer("POST")).status == 200
    assert bytes(node.log[1].body) == body
    assert (await first.answer("POST")).status == 200


async def test_an_upload_on_its_way_goes_on_while_the_memory_is_full(world: World) -> None:
    async def digest(received: Received) -> None:
        body = await received.whole()
        received.send(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(str(len(body))), str(len(body)).encode())
        )

    node = await world.node(script=digest, owner="generic")
    running = await world.serve(node, limits__body_memory="400KB")
    uploading, filling = await running.client(), await running.client()
    uploading.send(request("POST", "/upload", {"Content-Length": "3000000"}))
    await eventually(lambda: node.log)
    filling.send(request("POST", "/v1/chat/completions", {**JSON, "Content-Length": "400000"}) + b" " * 399_999)
    await eventually(lambda: running.gateway.body_memory == 399_999)
    for _ in range(30):
        await uploading.send_gently(bytes(100_000))
    assert bytes((await uploading.answer("POST")).body) == b"3000000"
    filling.fin()


async def test_a_request_whose_node_died_waits_for_another(world: World) -> None:
    gate = Gate()
    dying, busy = await world.node(), await world.node(script=gate)
    running = await world.serve(
        node_entry(dying, max_in_flight=1), node_entry(busy, max_in_flight=1), defaults__policy="round-robin"
    )

    async def die(received: Received) -> None:
        await received.whole()
        await eventually(lambda: gate.waiting)
        await asyncio.sleep(0.4)  # longer than what may be a keep-alive race
        received.peer.rst()

    dying.script = die
    clients = [await running.client() for _ in range(2)]
    for client in clients:
        client.send(post_chat())
    await eventually(lambda: waiting(running) == 1)
    for _ in clients:
        await eventually(lambda: gate.waiting)
        gate.open()
    assert [(await client.answer("POST")).status for client in clients] == [200, 200]
    assert (dying.executions, busy.executions) == (1, 2)
