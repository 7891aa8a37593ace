"""What must not grow: memory, connections, tracked requests. And many at once."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import random
import re
import signal
from pathlib import Path

import pytest

from tests.blackbox.fakenode import Answer, Received, delta, sse
from tests.blackbox.process import Process
from tests.blackbox.wire import Client
from tests.blackbox.world import World, eventually, post_chat, request


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_T11_unique_prompts_and_failures_leave_nothing_behind(world: World) -> None:
    nodes = [await world.node() for _ in range(2)]
    running = await world.serve(*nodes)

    async def lane(client: Client, first: int, count: int) -> None:
        for number in range(first, first + count):
            failing = number % 100 == 0
            model = f"none-{number}" if failing else "m"
            answer = await client.ask(post_chat(model, content=f"prompt {number} " + "x" * 500, user=f"user {number}"))
            assert answer.status == (404 if failing else 200)

    async def batch(first: int, count: int) -> None:
        clients = [await running.client() for _ in range(10)]
        share = count // 10
        await asyncio.gather(*(lane(client, first + i * share, share) for i, client in enumerate(clients)))
        for client in clients:
            client.fin()
        for node in nodes:
            node.forget()
        world.clients.clear()
        await running.at_rest()
        gc.collect()

    await batch(0, 1500)
    objects, memory = len(gc.get_objects()), resident()
    await batch(1500, 2500)
    # Decisions are remembered up to a thousand; everything else must be where it was.
    assert len(running.gateway.balancer.decisions) <= 1000
    assert len(gc.get_objects()) - objects < 1500
    assert resident() - memory < 16 << 20
    assert len(running.gateway.counters.cells) <= 6
    assert len(running.gateway.balancer.fleet._candidates) < 50


async def test_T12_connections_to_nodes_are_used_again(world: World) -> None:
    nodes = [await world.node() for _ in range(2)]
    running = await world.serve(*nodes)

    async def lane() -> None:
        client = await running.client()
        data = post_chat()
        for _ in range(25):
            client.send(data * 10)
            for _ in range(10):
                assert (await client.answer("POST")).status == 200

    await asyncio.gather(*(lane() for _ in range(20)))
    assert sum(len(node.log) for node in nodes) == 5000
    # Twenty at once, and one for the health checks of each; some change nodes at the wrong moment.
    assert sum(node.most_open for node in nodes) <= 42
    assert sum(node.accepted for node in nodes) <= 60


async def test_T13_two_thousand_streams_start_and_end(world: World) -> None:
    pieces = sse(delta("a"), delta("b"))
    nodes = [
        await world.node(
            Answer(headers=(("Content-Type", "text/event-stream"),), chunks=pieces, framing="chunked", hang="mid")
        )
        for _ in range(4)
    ]
    running = await world.serve(*nodes, telemetry__interval="1h")
    data = post_chat(stream=True)
    clients: list[Client] = []

    async def start() -> None:
        client = await running.client()
        clients.append(client)
        client.send(data)
        await client.body(await client.head(patience=40), 10, patience=40)

    for _ in range(20):
        await asyncio.gather(*(start() for _ in range(100)))
    assert len(running.gateway.exchanges) == 2000
    assert [running.in_flight(node) for node in nodes] == [500] * 4
    for client in clients:
        client.fin()
    await running.at_rest(patience=20)


async def test_T13_without_descriptors_the_answer_is_a_clean_503_and_nothing_crashes(
    world: World, tmp_path: Path
) -> None:
    node = await world.node(Answer(hang="headers"))
    # 160 - 64 that are kept aside leave 96 descriptors: 48 clients, each with a connection to the node.
    process = await Process.start(world, tmp_path, "serve", "--node", node.url, "--shutdown-delay", "0s", files=160)
    clients = [await world.connect(process.port) for _ in range(120)]
    data = post_chat()
    for client in clients:
        client.send(data)
    refused = clients[48:]
    await eventually(lambda: sum(client.ended for client in clients) >= len(refused), "the others were refused")
    statuses = [re.findall(rb"HTTP/1.1 (\d+)", bytes(client.buffer)) for client in clients if client.ended]
    assert statuses == [[b"503"]] * len(statuses)
    assert sum(not client.ended for client in clients) == 48
    await eventually(lambda: len(node.log) == 48, "the others are at the node")
    assert process.alive
    for client in clients:
        client.transport.abort()
    # It has recovered.
    node.answer = Answer()
    await eventually(lambda: all(r.aborted_at for r in node.log), "the node saw the aborts")
    answer = await (await world.connect(process.port)).ask(data)
    assert answer.status == 200
    process.send(signal.SIGTERM)
    assert await process.exit() == 0
    assert b"Traceback" not in process.errors()


async def test_a_slow_reader_does_not_grow_memory(world: World) -> None:
    total = 192 << 20
    piece = bytes(1 << 20)
    node = await world.node(Answer(chunks=[piece] * 192, framing="length"))
    running = await world.serve(node)
    client = await running.client()
    client.send(request("GET", "/huge"))
    head = await client.head()
    client.pause()
    (connection,) = running.gateway.clients
    memory = resident()
    await asyncio.sleep(0.7)
    sent = node.log[0].peer.sent - node.log[0].peer.transport.get_write_buffer_size()
    # What is on its way lies in the buffers of the two sockets (some MB each), not in the gateway.
    assert sent < 40 << 20
    assert connection._transport.get_write_buffer_size() < 2 << 20
    assert resident() - memory < 24 << 20
    client.resume()
    while not head.complete:
        await client.body(head, len(head.body) + 1, patience=40)
        total -= len(head.body)
        assert not any(head.body)
        head.body.clear()
    assert total == 0


async def test_a_slow_reader_with_pipelined_requests_does_not_grow_memory(world: World) -> None:
    node = await world.node(Answer(body=bytes(8 << 20)))
    running = await world.serve(node)
    client = await running.client()
    client.pause()
    client.send(request("GET", "/huge") * 30)
    (connection,) = running.gateway.clients
    highest = 0
    for _ in range(60):
        await asyncio.sleep(0.01)
        highest = max(highest, connection._transport.get_write_buffer_size())
    assert highest < 2 << 20
    client.resume()
    for _ in range(30):
        answer = await client.answer(patience=40)
        assert answer.complete
        assert len(answer.body) == 8 << 20


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_slow_node_slows_the_upload_down(world: World, framing: str) -> None:
    gate = asyncio.Event()

    async def slow(received: Received) -> None:
        received.peer.pause()
        await gate.wait()
        received.peer.resume()
        body = await received.whole()
        digest = hashlib.sha256(body).hexdigest().encode()
        received.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(digest), digest))

    node = await world.node(script=slow, owner="generic")
    running = await world.serve(node, limits__body="256MiB")
    client = await running.client()
    piece, count = random.Random(2).randbytes(1 << 20), 96
    coded = piece if framing == "length" else b"%x\r\n%b\r\n" % (len(piece), piece)
    said = {"Content-Length": str(count << 20)} if framing == "length" else {"Transfer-Encoding": "chunked"}
    client.send(request("POST", "/upload", said))

    async def upload() -> None:
        for _ in range(count):
            await client.send_gently(coded)
        if framing == "chunked":
            client.send(b"0\r\n\r\n")

    uploading = asyncio.create_task(upload())
    await eventually(lambda: node.log and running.gateway.upstreams)
    await asyncio.sleep(0.5)
    sent = client.sent - client.transport.get_write_buffer_size()
    assert sent < 40 << 20, "back-pressure reaches the client"
    (upstream,) = running.gateway.upstreams.values()
    assert sum(c.transport.get_write_buffer_size() for c in upstream.open) < 2 << 20
    assert running.gateway.body_memory < 2 << 20
    gate.set()
    answer = await client.answer("POST", patience=40)
    await uploading
    assert bytes(answer.body).decode() == hashlib.sha256(piece * count).hexdigest()
    assert answer.keep_alive
