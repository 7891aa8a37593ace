"""Sending a request once more: when it is right, when it would be done twice."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.blackbox.deaf import deaf
from tests.blackbox.fakenode import Answer, FakeNode, Received, stream
from tests.blackbox.world import JSON, Running, World, eventually, post_chat, request

WORKING = 0.4
"""Seconds that a node works before it drops: longer than what may be a keep-alive race."""


async def two(
    world: World, first: Answer, owner: str = "vllm", **changes: object
) -> tuple[Running, FakeNode, FakeNode]:
    """Two nodes of which the first is asked first."""
    one = await world.node(first, owner=owner)
    other = await world.node(owner=owner)
    # max_in_flight and weights would bend other things: the first has simply nothing to do yet.
    running = await world.serve(one, other, defaults__policy="round-robin", **changes)
    await _turn_to(running, one, other)
    return running, one, other


async def _turn_to(running: Running, one: FakeNode, other: FakeNode) -> None:
    before, one.answer = one.answer, Answer()
    while not other.log:
        await running.ask(request("GET", "/turn"))
    one.answer = before
    one.forget()
    other.forget()
    await running.at_rest()


GENERIC = request("POST", "/task", JSON, b"{}")
GENERIC_WITH_KEY = request("POST", "/task", {**JSON, "Idempotency-Key": "k1"}, b"{}")
CHAT = post_chat()

DROPPED = [
    # request, engine, executions in all, status
    ("a generic POST is executed once", GENERIC, "generic", 1, 502),
    ("a generic POST with a key is sent again", GENERIC_WITH_KEY, "generic", 2, 200),
    ("a chat is sent again", CHAT, "vllm", 2, 200),
    ("an unknown POST of an OpenAI engine is executed once", request("POST", "/v1/new", JSON, b"{}"), "vllm", 1, 502),
    ("a stored response is executed once", request("POST", "/v1/responses", JSON, b'{"model":"m"}'), "vllm", 1, 502),
    (
        "an embedding is sent again",
        request("POST", "/v1/embeddings", JSON, b'{"model":"m","input":"a"}'),
        "vllm",
        2,
        200,
    ),
    ("a chat that is stored is executed once", post_chat(store=True), "vllm", 1, 502),
]


@pytest.mark.parametrize("cut", ["fin", "rst"])
@pytest.mark.parametrize(("what", "data", "owner", "executions", "status"), DROPPED, ids=[row[0] for row in DROPPED])
async def test_T46_a_node_that_drops_the_request_before_its_head(
    world: World, what: str, data: bytes, owner: str, executions: int, status: int, cut: str
) -> None:
    running, one, other = await two(world, Answer(ttft=WORKING, cut_after=-1, cut=cut), owner)
    answer = await running.ask(data)
    assert answer.status == status
    assert one.executions == 1
    assert one.executions + other.executions == executions
    if status == 502:
        assert json.loads(bytes(answer.body))["error"]["code"] == "node_broke"
    if executions == 2:
        assert bytes(one.log[0].body) == bytes(other.log[0].body)
        assert one.log[0].get("x-request-id") == other.log[0].get("x-request-id")


async def test_T46_a_chat_is_re_dispatched_once_and_not_for_ever(world: World) -> None:
    nodes = [await world.node(Answer(ttft=WORKING, cut_after=-1)) for _ in range(4)]
    running = await world.serve(*nodes)
    assert (await running.ask(CHAT)).status == 502
    assert sum(node.executions for node in nodes) == 2
    assert (await running.line())["attempts"] == 2


async def test_T46_a_silent_node_s_chat_goes_to_another(world: World) -> None:
    running, one, other = await two(world, Answer(hang="headers"), defaults__timeouts__first_byte="300ms")
    answer = await running.ask(post_chat(stream=True))
    assert answer.status == 200
    await eventually(lambda: one.log[0].aborted_at is not None, "the silent node saw the abort")
    assert (one.executions, other.executions) == (1, 1)


async def test_T46_a_silent_node_s_generic_post_does_not(world: World) -> None:
    running, one, other = await two(world, Answer(hang="headers"), "generic")
    running.set_timeouts(plain_first_byte=0.3)
    answer = await running.ask(GENERIC)
    assert answer.status == 504
    assert (one.executions, other.executions) == (1, 0)


@pytest.mark.parametrize("data", [GENERIC, CHAT], ids=["generic", "chat"])
async def test_T46_a_refused_connection_goes_to_another_node(world: World, data: bytes) -> None:
    running, one, other = await two(world, Answer(), "vllm" if data is CHAT else "generic", telemetry__interval="1h")
    one.refuse()
    await eventually(lambda: not one.open)
    answer = await running.ask(data)
    assert answer.status == 200
    assert other.executions == 1
    assert running.state(one) == "down", "a refused connection is a fact"
    await running.at_rest()
    assert running.lines()[-1]["attempts"] == 2


async def test_T46_a_connection_that_is_not_accepted_goes_to_another_node(world: World) -> None:
    running, one, other = await two(world, Answer(), telemetry__interval="1h", defaults__timeouts__connect="300ms")
    async with deaf(one):
        assert (await running.ask(CHAT)).status == 200
    assert other.executions == 1


async def test_T46_all_nodes_refuse_and_the_answer_is_explicit(world: World) -> None:
    running, one, other = await two(world, Answer(), telemetry__interval="1h")
    one.refuse()
    other.refuse()
    await eventually(lambda: not one.open and not other.open)
    answer = await running.ask(CHAT)
    assert answer.status in (502, 503)
    assert answer.get("retry-after")


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 422, 500, 502, 504])
async def test_T46_an_answer_that_is_no_sign_of_business_is_never_retried(world: World, status: int) -> None:
    body = b'{"error":{"message":"no"}}'
    running, one, other = await two(world, Answer(status=status, reason="Never Mind", body=body))
    answer = await running.ask(CHAT)
    assert (answer.status, bytes(answer.body)) == (status, body)
    assert answer.start == b"HTTP/1.1 %d Never Mind" % status
    assert (one.executions, other.executions) == (1, 0)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_T46_a_busy_node_s_request_goes_to_another(world: World, status: int, framing: str) -> None:
    running, one, other = await two(world, Answer(status=status, body=b"busy", framing=framing))
    client = await running.client()
    answer = await client.ask(CHAT)
    assert (answer.status, bytes(answer.body)) == (200, Answer().body)
    assert (one.executions, other.executions) == (1, 1)
    assert not client.buffer, "one answer, and nothing after it"
    assert (await client.ask(CHAT)).complete


async def test_T46_a_busy_generic_node_s_post_does_not(world: World) -> None:
    # Of an unknown engine nobody knows whether its 503 came before the work.
    running, one, other = await two(world, Answer(status=503, body=b"busy"), "generic")
    answer = await running.ask(GENERIC)
    assert (answer.status, bytes(answer.body)) == (503, b"busy")
    assert (one.executions, other.executions) == (1, 0)


async def test_T46_when_all_nodes_are_busy_the_client_gets_the_busy_answer_with_its_headers(world: World) -> None:
    busy = Answer(status=429, reason="Too Many Requests", body=b"later", headers=(("Retry-After", "7"), ("X-A", "b")))
    running, one, other = await two(world, busy)
    other.answer = busy
    client = await running.client()
    answer = await client.ask(CHAT)
    assert (answer.status, bytes(answer.body), answer.get("retry-after")) == (429, b"later", b"7")
    assert answer.get("x-a") == b"b"
    assert not client.buffer
    assert (one.executions, other.executions) == (1, 1)


async def test_T46_a_busy_answer_too_large_to_hold_is_relayed(world: World) -> None:
    body = b"b" * 100_000
    for framing in ("length", "chunked"):
        running, _one, other = await two(world, Answer(status=503, body=body, framing=framing))
        answer = await running.ask(CHAT)
        assert (answer.status, bytes(answer.body)) == (503, body)
        assert other.executions == 0


async def test_T46_a_node_that_falls_silent_within_its_busy_answer(world: World) -> None:
    async def script(received: Received) -> None:
        await received.whole()
        received.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\nbus")
        await received.gone(50)

    running, one, other = await two(world, Answer(), defaults__timeouts__first_byte="300ms")
    one.script = script
    other.answer = stream("x")
    client = await running.client()
    answer = await client.ask(post_chat(stream=True))
    assert answer.status == 200
    assert bytes(answer.body).endswith(b"data: [DONE]\n\n")
    assert not client.buffer
    assert other.executions == 1


async def test_T46_after_the_first_byte_never(world: World) -> None:
    running, one, other = await two(world, stream("a", "b", "c", cut_after=1))
    client = await running.client()
    client.send(post_chat(stream=True))
    assert not (await client.rest(await client.head())).complete
    assert (one.executions, other.executions) == (1, 0)


async def test_T46_retries_have_a_budget(world: World) -> None:
    gate = asyncio.Event()

    async def hold(received: Received) -> None:
        await received.whole()
        await gate.wait()
        received.send(Answer().head() + Answer().body)

    busy = await world.node(Answer(status=503, body=b"busy"))
    slow = await world.node(script=hold)
    running = await world.serve(busy, slow, defaults__policy="round-robin", defaults__retry__budget="10%")
    clients = [await running.client() for _ in range(20)]
    for client in clients:
        client.send(CHAT)
    # Half of them meet the busy node; the first three retries are free, the others over a tenth of what is live.
    await eventually(lambda: len(busy.log) == 10)
    answered = [client for client in clients if client.received]
    await eventually(lambda: len([client for client in clients if client.received]) == 7)
    assert running.gateway.balancer.retrying == 3
    gate.set()
    answers = [await client.answer("POST") for client in clients]
    assert sorted(answer.status for answer in answers) == [200] * 13 + [503] * 7
    assert len(answered) <= 7


# -- T65


async def test_T65_requests_on_connections_that_the_node_is_closing(world: World) -> None:
    """A node that closes idle connections after 0.2 s, and 1,000 requests with gaps around 0.2 s."""
    node = await world.node(keepalive=0.2, owner="generic")
    running = await world.serve(node, telemetry__interval="1h")
    sent = 0
    answers: list[int] = []

    async def lane(number: int) -> None:
        nonlocal sent
        client = await running.client()
        for turn in range(20):
            sent += 1
            answers.append((await client.ask(request("POST", f"/task/{number}/{turn}", JSON, b"{}"))).status)
            # From 190 to 210 ms: before, while and after the node closes.
            await asyncio.sleep(0.19 + 0.001 * ((number * 7 + turn * 3) % 21))

    await asyncio.gather(*(lane(number) for number in range(50)))
    assert sent == 1000
    assert answers == [200] * 1000
    executed = [received.target for received in node.log if received.complete]
    assert len(executed) == len(set(executed)) == 1000


@pytest.mark.parametrize("cut", ["fin", "rst"])
async def test_T65_a_request_that_meets_a_closing_connection_is_sent_again_on_a_fresh_one(
    world: World, cut: str
) -> None:
    """The race itself, made certain: the node closes when the request's first bytes come, and has not read it."""
    node = await world.node(owner="generic")
    running = await world.serve(node, telemetry__interval="1h")
    await running.ask(request("GET", "/warm"))

    async def close_reused(received: Received) -> None:
        await received.whole()
        if received.peer.requests > 1:
            node.log.remove(received)  # it was not executed
            if cut == "rst":
                received.peer.rst()
            else:
                received.peer.fin()
            return
        received.send(Answer().head() + Answer().body)

    node.script = close_reused
    assert (await running.ask(GENERIC)).status == 200
    assert running.gateway.counters.retries == {"race": 1}
    assert node.executions == 2  # with the warming one


@pytest.mark.parametrize("then", ["refused", "busy"])
@pytest.mark.parametrize(
    ("path", "elsewhere"), [("/v1/responses", 0), ("/v1/chat/completions", 1)], ids=["stored", "repeatable"]
)
async def test_T65_a_node_that_dies_of_a_request_did_not_refuse_it(
    world: World, path: str, elsewhere: int, then: str
) -> None:
    """It looks like the race: a reused connection breaks at once. But the node had the request."""
    one, other = await world.node(), await world.node()
    running = await world.serve(one, other, defaults__policy="round-robin", telemetry__interval="1h")
    for _ in range(2):
        await running.ask(request("GET", "/warm"))
    await _turn_to(running, one, other)

    async def die(received: Received) -> None:
        await received.whole()
        if received.peer.requests == 1:
            busy = Answer(status=503, body=b"loading")
            received.send(busy.head() + busy.body)
        elif then == "refused":
            one.refuse()
        else:
            received.peer.rst()

    one.script = die
    answer = await running.ask(request("POST", path, JSON, b'{"model":"m","messages":[]}'))
    assert answer.status == (200 if elsewhere else 502 if then == "refused" else 503)
    assert other.executions == elsewhere
    assert running.gateway.counters.retries["race"] == 1


async def dying_fleet(world: World, then: str, **changes: object) -> tuple[Running, list[FakeNode]]:
    """Three nodes with an idle connection each. Each dies of the next request, at once, and then refuses connections;
    with `then` = slow only the first does, and the others work for a while before they die."""
    nodes = [await world.node(owner="vllm") for _ in range(3)]
    running = await world.serve(*nodes, defaults__policy="round-robin", telemetry__interval="1h", **changes)
    for _ in range(3):
        await running.ask(request("GET", "/warm"))
    for node in nodes:
        node.forget()

    def deadly(node: FakeNode) -> None:
        async def die(received: Received) -> None:
            await received.whole()
            if then == "slow" and sum(len(each.log) for each in nodes) > 1:
                await asyncio.sleep(WORKING)
            node.refuse()

        node.script = die

    for node in nodes:
        deadly(node)
    return running, nodes


@pytest.mark.parametrize("then", ["slow", "at once"])
@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_T46_a_request_kills_two_nodes_at_most(world: World, then: str, retries: int) -> None:
    running, nodes = await dying_fleet(world, then, defaults__retry__retries=retries)
    assert (await running.ask(CHAT)).status == 502
    assert sum(node.executions for node in nodes) == 2


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("data", [GENERIC_WITH_KEY, CHAT], ids=["with a key", "chat"])
async def test_T65_what_may_be_sent_again_is_so_whatever_the_limit_of_retries(
    world: World, data: bytes, retries: int
) -> None:
    """The node that broke the connection refuses the fresh one: it has died, and may have had the request."""
    one, other = [await world.node(owner="generic" if data is not CHAT else "vllm") for _ in range(2)]
    running = await world.serve(
        one, other, defaults__policy="round-robin", telemetry__interval="1h", defaults__retry__retries=retries
    )
    for _ in range(2):
        await running.ask(request("GET", "/warm"))
    await _turn_to(running, one, other)

    async def die(received: Received) -> None:
        await received.whole()
        one.refuse()

    one.script = die
    assert (await running.ask(data)).status == 200
    assert running.gateway.counters.retries == {"race": 1, "broke": 1}
