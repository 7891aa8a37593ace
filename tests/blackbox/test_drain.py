"""The real command: how it ends, and how it takes over another configuration."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from tests.blackbox.fakenode import Answer, delta, sse, stream
from tests.blackbox.process import Process
from tests.blackbox.wire import Client
from tests.blackbox.world import World, eventually, node_entry, post_chat, request


async def status_of(world: World, port: int, path: str) -> int:
    """The status of a GET; 0 when nobody listens there."""
    try:
        client = await world.connect(port)
        answer = await client.ask(request("GET", path, {"Connection": "close"}))
    except ConnectionError:
        return 0
    return answer.status


async def test_T64_a_gateway_that_is_told_to_end_fails_nobody(world: World, tmp_path: Path) -> None:
    long = Answer(
        headers=(("Content-Type", "text/event-stream"),),
        chunks=sse(*(delta(str(n)) for n in range(30))),
        framing="chunked",
        gap=0.1,
    )
    slow, quick = await world.node(long, models=("slow",)), await world.node(Answer(ttft=0.005), models=("m",))
    process = await Process.start(
        world,
        tmp_path,
        "serve",
        "--node",
        slow.url,
        "--node",
        quick.url,
        "--shutdown-delay",
        "1500ms",
        "--telemetry-interval",
        "100ms",
    )
    await eventually(lambda: process.errors().count(b"node ready") == 2, patience=20)
    assert await status_of(world, process.admin, "/ready") == 200

    streams: list[Client] = []
    for _ in range(4):
        client = await process.connect()
        client.send(post_chat("slow", stream=True))
        await client.head()
        streams.append(client)

    balanced = True  # whether the load balancer in front still sends requests here
    served = closed = 0

    async def lane() -> None:
        nonlocal served, closed
        client = await process.connect()
        while balanced:
            answer = await client.ask(post_chat())
            assert answer.status == 200
            served += 1
            if not answer.keep_alive:
                closed += 1
                await client.gone()
                if balanced:
                    client = await process.connect()

    lanes = [asyncio.create_task(lane()) for _ in range(8)]
    await eventually(lambda: served > 50)
    process.send(signal.SIGTERM)
    told = asyncio.get_running_loop().time()
    while await status_of(world, process.admin, "/ready") == 200:
        pass
    assert asyncio.get_running_loop().time() - told < 1.0, "ready ends at once, not after the delay"
    assert await status_of(world, process.port, "/health") == 503
    before = served
    # The balancer in front notices after a while; until then it goes on sending, on old and new connections.
    await asyncio.sleep(0.5)
    assert served > before + 10
    balanced = False
    await asyncio.gather(*lanes)
    assert closed > 0, "kept connections are told to close"
    await eventually(lambda: process.errors().count(b"") > 0)
    while await status_of(world, process.port, "/health"):
        await asyncio.sleep(0.05)
    assert process.alive, "streams are under way"
    for client in streams:
        assert not client.ended
    for client in streams:
        await client.until(lambda client=client: client.ended, 20)
        assert client.buffer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert await process.exit() == 0
    outcomes = {str(line["outcome"]) for line in process.log()}
    assert outcomes == {"ok"}
    assert sum(line["status"] == 200 for line in process.log()) == served + 4
    assert b"Traceback" not in process.errors()


async def test_T64_a_second_signal_ends_at_once(world: World, tmp_path: Path) -> None:
    node = await world.node(stream("a", "b", hang="mid"))
    process = await Process.start(world, tmp_path, "serve", "--node", node.url, "--shutdown-delay", "20s")
    client = await process.connect()
    client.send(post_chat(stream=True))
    head = await client.head()
    process.send(signal.SIGTERM)
    await eventually(lambda: b"draining" in process.errors())
    await asyncio.sleep(0.2)
    assert process.alive
    process.send(signal.SIGTERM)
    assert await process.exit(10) == 1
    await client.rest(head)
    assert not head.complete
    await eventually(lambda: node.log[0].aborted_at is not None, "the node saw the abort")
    assert len(process.log()) == 1, "what is cut is logged too"
    assert b"Traceback" not in process.errors()


async def test_T64_the_grace_has_an_end(world: World, tmp_path: Path) -> None:
    node = await world.node(stream("a", "b", hang="mid"))
    process = await Process.start(
        world, tmp_path, "serve", "--node", node.url, "--shutdown-delay", "0s", "--shutdown-grace", "500ms"
    )
    client = await process.connect()
    client.send(post_chat(stream=True))
    head = await client.head()
    process.send(signal.SIGTERM)
    assert await process.exit(10) == 1
    await client.rest(head)
    assert not head.complete
    assert len(process.log()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_T64_an_idle_gateway_ends_quickly_and_with_0(
    world: World, tmp_path: Path, number: signal.Signals
) -> None:
    node = await world.node()
    arguments = [] if number is signal.SIGINT else ["--shutdown-delay", "0s"]
    process = await Process.start(world, tmp_path, "serve", "--node", node.url, *arguments)
    idle = await process.connect()
    await idle.ask(post_chat())
    process.send(number)
    assert await process.exit(8) == 0
    await idle.gone()
    assert not idle.reset


async def test_T64_without_any_grace_nobody_idle_makes_it_a_failure(world: World, tmp_path: Path) -> None:
    node = await world.node()
    arguments = ["--shutdown-delay", "0s", "--shutdown-grace", "0s"]
    process = await Process.start(world, tmp_path, "serve", "--node", node.url, *arguments)
    idle = await process.connect()
    await idle.ask(post_chat())
    process.send(signal.SIGTERM)
    assert await process.exit(8) == 0
    assert not idle.reset


CONFIGURATION = """
nodes:
{nodes}
telemetry: {{interval: 100ms}}
shutdown: {{delay: 0s}}
"""


def write(path: Path, *urls: str, more: str = "") -> None:
    nodes = "\n".join(f"  - {{name: {chr(97 + n)}, url: '{url}'}}" for n, url in enumerate(urls))
    path.write_text(CONFIGURATION.format(nodes=nodes) + more)


async def test_a_reload_adds_and_removes_nodes_and_fails_nobody(world: World, tmp_path: Path) -> None:
    one, other = await world.node(stream("a", "b", "c", gap=0.5)), await world.node(models=("m", "n"))
    file = tmp_path / "steelyard.yaml"
    write(file, one.url)
    process = await Process.start(world, tmp_path, "serve", "--config", str(file))
    streaming = await process.connect()
    streaming.send(post_chat(stream=True))
    head = await streaming.head()
    file.write_text(CONFIGURATION.format(nodes=f"  - {{name: b, url: '{other.url}'}}"))
    process.send(signal.SIGHUP)
    await eventually(lambda: b"configuration reloaded" in process.errors())
    await eventually(lambda: process.errors().count(b"node ready") == 2)
    client = await process.connect()
    for _ in range(5):
        answer = await client.ask(post_chat("n"))
        assert answer.get("x-steelyard-node") == b"b"
    await streaming.rest(head)
    assert head.complete, "a node that was removed finishes its streams"
    await eventually(lambda: not one.open, "and is left alone then")
    process.send(signal.SIGTERM)
    assert await process.exit() == 0


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ("defaults: {polcy: random}\n", b"policy"),
        ("defaults: {timeouts: {idle: 5 parsecs}}\n", b"parsecs"),
        ("routes: [\n", b"steelyard.yaml"),
    ],
)
async def test_a_bad_reload_keeps_the_old_configuration_and_says_why(
    world: World, tmp_path: Path, more: str, hint: bytes
) -> None:
    node = await world.node()
    file = tmp_path / "steelyard.yaml"
    write(file, node.url)
    process = await Process.start(world, tmp_path, "serve", "--config", str(file))
    write(file, "http://127.0.0.1:1", more=more)
    process.send(signal.SIGHUP)
    await eventually(lambda: b"the old one stays" in process.errors())
    assert hint in process.errors()
    client = await process.connect()
    assert (await client.ask(post_chat())).status == 200
    write(file, node.url)
    process.send(signal.SIGHUP)
    await eventually(lambda: b"configuration reloaded" in process.errors())
    assert (await client.ask(post_chat())).status == 200


async def test_a_node_removed_under_load_finishes_its_streams(world: World) -> None:
    one, other = await world.node(stream("a", "b", "c", gap=0.2)), await world.node(stream("x"))
    running = await world.serve(one, other, defaults__policy="round-robin")
    clients = []
    for _ in range(20):
        client = await running.client()
        client.send(post_chat(stream=True))
        clients.append((client, await client.head()))
    running.reload(nodes=[node_entry(other)])
    assert running.state(one) is None
    for client, head in clients:
        assert (await client.rest(head)).complete
    for _ in range(4):
        assert (await running.ask(post_chat(stream=True))).status == 200
    assert len(one.log) == 10
    await eventually(lambda: not one.open, "no connection to the removed node is left")
    await eventually(lambda: all(n.name != one.name for n in running.gateway.upstreams), "nor anything else of it")


async def test_a_node_that_comes_back_under_its_name_at_another_address_is_another_node(world: World) -> None:
    old, new = await world.node(stream("a", "b", gap=0.5)), await world.node(Answer(body=b"{}"))
    running = await world.serve({**node_entry(old), "name": "gpu"})
    client = await running.client()
    client.send(post_chat(stream=True))
    head = await client.head()
    running.reload(nodes=[{**node_entry(new), "name": "gpu"}])
    await eventually(lambda: running.gateway.balancer.fleet.nodes["gpu"].state == "ready")
    assert running.gateway.balancer.fleet.nodes["gpu"].in_flight == 0
    assert bytes((await running.ask(post_chat())).body) == b"{}"
    assert (await client.rest(head)).complete
    assert len(old.log) == 1


async def test_T64_a_slow_reader_has_its_answer_whole(world: World) -> None:
    size = 24_000_000  # More than the kernel's buffers hold: those of a sender grow to 4 MiB by default.
    node = await world.node(Answer(body=b"x" * size))
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat())
    client.pause()
    draining = asyncio.create_task(running.service.drain())
    # Longer than what somebody who is cut off has for the last words.
    await asyncio.sleep(1.5)
    assert not draining.done()
    client.resume()
    answer = await client.answer("POST")
    assert len(answer.body) == size
    assert await draining
    running.stopped = True


async def test_T64_who_is_cut_off_is_told_so(world: World) -> None:
    silent = await world.node(Answer(hang="headers"), models=("silent",))
    streaming = await world.node(stream("a", "b", hang="mid"), models=("streaming",))
    running = await world.serve(silent, streaming, shutdown__grace="300ms")
    old, new, waiting = [await running.client() for _ in range(3)]
    old.send(post_chat("streaming", stream=True, version="1.0"))
    new.send(post_chat("streaming", stream=True))
    waiting.send(post_chat("silent"))
    started = [await client.head() for client in (old, new)]
    await eventually(lambda: silent.log)
    assert not await running.service.drain()
    running.stopped = True
    answer = await waiting.answer("POST")
    assert answer.status == 503
    assert json.loads(bytes(answer.body))["error"]["code"] == "draining"
    await old.rest(started[0])
    assert old.reset, "an end in order would look whole"
    await new.rest(started[1])
    assert not started[1].complete
    assert b'"draining"' in started[1].body
    assert {line["outcome"] for line in running.lines()} == {"draining"}


async def test_a_node_with_another_key_stays_in_service(world: World) -> None:
    node = await world.node()
    running = await world.serve(node_entry(node, api_key="old"))
    there = running.gateway.balancer.fleet.nodes[node.name]
    running.reload(nodes=[node_entry(node, api_key="new")])
    assert running.gateway.balancer.fleet.nodes[node.name] is there
    assert (await running.ask(post_chat())).status == 200
    assert node.log[-1].get("authorization") == b"Bearer new"
