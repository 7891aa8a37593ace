"""Which node gets how much, seen from outside."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from tests.blackbox.fakenode import Answer, FakeNode, Received, stream
from tests.blackbox.wire import Client
from tests.blackbox.world import JSON, Running, World, eventually, node_entry, post_chat, request


def shares(*nodes: FakeNode) -> list[int]:
    return [len(node.log) for node in nodes]


async def test_T15_a_fresh_but_equal_fleet_does_not_restart_the_round(world: World) -> None:
    nodes = [await world.node() for _ in range(3)]
    running = await world.serve(*nodes, defaults__policy="round-robin")
    client = await running.client()
    for _ in range(30):
        assert (await client.ask(post_chat())).status == 200
        running.reload()
    assert shares(*nodes) == [10, 10, 10]


async def test_T16_unknown_paths_are_accounted_for_like_known_ones(world: World) -> None:
    gate = asyncio.Event()

    async def hold(received: Received) -> None:
        await received.whole()
        await gate.wait()
        received.send(Answer().head() + Answer().body)

    nodes = [await world.node(script=hold) for _ in range(4)]
    running = await world.serve(*nodes)
    clients: list[Client] = []
    for number in range(480):
        client = await running.client()
        client.send(request("POST", f"/v1/foo/{number}", JSON, b'{"a":1}'))
        clients.append(client)
    await eventually(lambda: sum(shares(*nodes)) == 480, "all requests are at the nodes")
    # Each counts at once and alike, so the least loaded node is always another one.
    assert shares(*nodes) == [120] * 4
    assert [running.in_flight(node) for node in nodes] == [120] * 4
    gate.set()
    for client in clients:
        assert (await client.answer("POST")).status == 200


@pytest.mark.parametrize("first", ["round-robin", "random", "consistent-hash"])
async def test_T17_a_policy_that_comes_later_finds_the_ledgers_right(world: World, first: str) -> None:
    nodes = [await world.node(stream("a", "b", hang="mid"), name=name) for name in ("a", "b", "c")]
    running = await world.serve(*nodes, defaults__policy=first)
    clients = []
    for number in range(30):
        client = await running.client()
        client.send(post_chat(stream=True, headers={"X-User-ID": f"user {number}"}))
        await client.body(await client.head(), 5)
        clients.append(client)
    before = {node.name: len(node.log) for node in nodes}
    assert {node.name: running.in_flight(node) for node in nodes} == before
    running.reload(defaults__policy="least-request")
    # From here on every request goes to a least loaded node, until they are level.
    for _ in range(max(before.values()) * 3 - 30):
        client = await running.client()
        client.send(post_chat(stream=True))
        await client.body(await client.head(), 5)
        clients.append(client)
    assert len(set(shares(*nodes))) == 1
    for client in clients:
        client.fin()


class TestT19:
    """Weight 0 means: no new traffic. Not "unset", not a reason to crash, and not overruled by being alone."""

    POLICIES = ("least-work", "round-robin", "weighted-round-robin", "random", "consistent-hash")

    @pytest.mark.parametrize("policy", POLICIES)
    async def test_T19_a_node_of_weight_0_gets_nothing(self, world: World, policy: str) -> None:
        one, zero = await world.node(), await world.node()
        running = await world.serve(node_entry(one), node_entry(zero, weight=0), defaults__policy=policy)
        for number in range(20):
            assert (await running.ask(post_chat(headers={"X-User-ID": str(number)}))).status == 200
        assert shares(one, zero) == [20, 0]

    @pytest.mark.parametrize("policy", POLICIES)
    async def test_T19_alone_it_gets_nothing_either_and_the_client_a_503(self, world: World, policy: str) -> None:
        zero = await world.node()
        running = await world.serve(node_entry(zero, weight=0), defaults__policy=policy)
        answer = await running.ask(post_chat())
        assert answer.status == 503
        assert b"weight 0" in answer.body
        assert answer.get("retry-after")
        assert not zero.log

    async def test_T19_all_at_0_is_a_503_and_not_an_equal_split(self, world: World) -> None:
        nodes = [await world.node() for _ in range(3)]
        entries = [node_entry(node, weight=0) for node in nodes]
        running = await world.serve(*entries, defaults__policy="weighted-round-robin")
        assert (await running.ask(post_chat())).status == 503
        assert shares(*nodes) == [0, 0, 0]

    async def test_T19_set_to_0_under_load_its_streams_go_on_and_no_new_one_comes(self, world: World) -> None:
        one, other = await world.node(stream("a", "b", gap=0.6)), await world.node(stream("x"))
        running = await world.serve(one, other, defaults__policy="round-robin")
        client = await running.client()
        while not one.log:
            client = await running.client()
            client.send(post_chat(stream=True))
            await client.head()
        begun = len(other.log)
        running.reload(nodes=[node_entry(one, weight=0), node_entry(other)])
        for _ in range(6):
            assert (await running.ask(post_chat(stream=True))).status == 200
        assert (len(one.log), len(other.log)) == (1, begun + 6)
        await eventually(lambda: client.buffer.endswith(b"0\r\n\r\n"), "the stream came to its end")


async def test_T23_a_cold_node_is_neither_flooded_nor_left_out(world: World) -> None:
    warm = [await world.node(Answer(ttft=0.01)) for _ in range(8)]
    cold = await world.node(Answer(ttft=0.01))
    running = await world.serve(*warm, cold, telemetry__interval="50ms")
    cold.refuse()
    await eventually(lambda: running.state(cold) == "down")
    await cold.start()
    await eventually(lambda: running.state(cold) == "ready")

    async def lane() -> None:
        client = await running.client()
        for _ in range(50):
            assert (await client.ask(post_chat())).status == 200

    await asyncio.gather(*(lane() for _ in range(16)))
    counts = shares(*warm)
    # 800 requests: an equal share is 89. The cold node begins at a tenth of it, and has a second or two to grow.
    assert sum(counts) + len(cold.log) == 800
    assert 1 <= len(cold.log) < 45, (len(cold.log), counts)
    assert min(counts) > 45


async def test_T24_a_node_that_is_still_loading_gets_nothing_until_it_is_well(world: World) -> None:
    well, loading = await world.node(), await world.node(health=503)
    running = await world.serve(well, loading, ready=False, telemetry__interval="50ms")
    await eventually(lambda: running.state(well) == "ready")
    for _ in range(20):
        assert (await running.ask(post_chat())).status == 200
    assert loading.checks >= 1
    assert shares(well, loading) == [20, 0]
    loading.health = 200
    await eventually(lambda: running.state(loading) == "ready")
    for _ in range(40):
        await running.ask(post_chat())
    assert len(loading.log) > 0


async def test_T24_while_all_are_loading_the_answer_is_an_explicit_503(world: World) -> None:
    loading = await world.node(health=503)
    running = await world.serve(node_entry(loading, models=["m"]), ready=False)
    answer = await running.ask(post_chat())
    assert answer.status == 503
    assert json.loads(bytes(answer.body))["error"]["code"] == "no_node"
    assert not loading.log


async def test_T24_a_node_that_falls_ill_gets_nothing_and_comes_back(world: World) -> None:
    well, ill = await world.node(), await world.node()
    running = await world.serve(well, ill, telemetry__interval="50ms")
    ill.health = 500
    await eventually(lambda: running.state(ill) == "down")
    for _ in range(10):
        assert (await running.ask(post_chat())).status == 200
    assert not ill.log
    ill.health = 200
    await eventually(lambda: running.state(ill) == "ready")


@pytest.mark.parametrize("policy", ["round-robin", "least-work", "random"])
async def test_T25_one_client_connection_does_not_mean_one_node(world: World, policy: str) -> None:
    nodes = [await world.node() for _ in range(4)]
    running = await world.serve(*nodes, defaults__policy=policy)
    client = await running.client()
    data = post_chat()
    for _ in range(20):
        # Fifty pipelined ones at a time: one connection all along.
        client.send(data * 50)
        for _ in range(50):
            assert (await client.answer("POST")).status == 200
    assert sum(shares(*nodes)) == 1000
    if policy == "round-robin":
        assert shares(*nodes) == [250] * 4
    else:
        # Binomial, 250 +- 13.7: five sigma.
        assert all(180 < share < 320 for share in shares(*nodes)), shares(*nodes)


async def test_a_session_stays_on_its_node_with_consistent_hash(world: World) -> None:
    nodes = [await world.node() for _ in range(4)]
    running = await world.serve(*nodes, defaults__policy="consistent-hash")
    where: dict[int, set[str]] = {}
    for number in range(12):
        for header in ("X-User-ID", "x-user-id", "X-USER-ID"):
            answer = await running.ask(post_chat(headers={header: f" user-{number} "}))
            where.setdefault(number, set()).add((answer.get("x-steelyard-node") or b"").decode())
    assert all(len(names) == 1 for names in where.values()), where
    assert len(set.union(*where.values())) > 1


async def spread_by_reason(running: Running, count: int) -> Counter[bytes]:
    """How often each node is named by the answers."""
    found: Counter[bytes] = Counter()
    for _ in range(count):
        found[(await running.ask(post_chat())).get("x-steelyard-node") or b""] += 1
    return found


async def test_the_answer_says_which_node_and_why_unless_it_is_told_not_to(world: World) -> None:
    node = await world.node(name="gpu-1")
    running = await world.serve(node_entry(node, version="v7"))
    answer = await running.ask(post_chat())
    assert answer.get("x-steelyard-node") == b"gpu-1"
    assert answer.get("x-steelyard-version") == b"v7"
    assert (answer.get("x-steelyard-reason") or b"").startswith(b"least-work")
    assert answer.get("x-steelyard-queue-ms") == b"0"
    assert await spread_by_reason(running, 2) == {b"gpu-1": 2}
    running.reload(response_headers=False)
    quiet = await running.ask(post_chat())
    assert [name for name, _ in quiet.headers if name.lower().startswith("x-steelyard")] == []
    assert quiet.get("x-request-id")
