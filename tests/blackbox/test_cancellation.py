"""The cancellation harness: whatever ends a request, and at whatever step of its life, nothing is left behind.

A step is a callback at one of the sockets involved (client, gateway towards the client, gateway towards the node,
node), or one side of a connection attempt. Each scene is run once undisturbed; then once for every step and every
disturbance, which strikes right after that step. In a second part the messages are broken off at every byte.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from steelyard.proxy.server import ClientConnection
from steelyard.proxy.upstream import NodeConnection, Upstream
from tests.blackbox.deaf import deaf
from tests.blackbox.fakenode import Answer, FakeNode, NodePeer, Received, delta, sse
from tests.blackbox.wire import Client, Message, WireError
from tests.blackbox.world import JSON, Running, World, eventually, node_entry, post_chat, request

WATCHED: tuple[tuple[type, str], ...] = tuple(
    (kind, name)
    for kind in (ClientConnection, NodeConnection, NodePeer, Client)
    for name in ("connection_made", "data_received", "connection_lost")
)
FOR_EVER = 1e9


class Steps:
    """Counts the steps, and strikes after one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0
        self.strike: Callable[[], None] = lambda: None
        self.struck = False

    def begin(self, at: int, strike: Callable[[], None]) -> None:
        self.count, self.at, self.strike, self.struck = 0, at, strike, False

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.struck = True
            asyncio.get_running_loop().call_soon(self.strike)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Every watched callback is a step."""
    counted = Steps()

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def callback(self: Any, *given: Any) -> Any:
            result = original(self, *given)
            counted.tick()
            return result

        return callback

    for kind, name in WATCHED:
        monkeypatch.setattr(kind, name, watched(getattr(kind, name)))
    connect = Upstream.connect

    async def connected(self: Upstream) -> NodeConnection:
        counted.tick()
        connection = await connect(self)
        counted.tick()
        return connection

    monkeypatch.setattr(Upstream, "connect", connected)
    return counted


class Scene:
    """One request in one situation."""

    data = b""
    status = 200
    executions = 1
    """How often it may be executed at most, keep-alive races apart."""
    needs_both = False
    """One node alone cannot give it a good answer."""
    fresh = False
    """Its connection to the node is a new one."""

    def __init__(self, world: World, steps: Steps) -> None:
        self.world = world
        self.steps = steps
        self.node: FakeNode
        self.other: FakeNode
        self.running: Running
        self.client: Client

    async def script(self, received: Received) -> None:
        """How the node answers."""
        raise NotImplementedError

    async def build(self) -> None:
        self.node = await self.world.node(script=self.script, name="n1")
        self.other = await self.world.node(script=self.script, name="n2")
        self.running = await self.world.serve(
            self.node, self.other, telemetry__interval="1h", defaults__timeouts__idle="20s"
        )

    async def once(self) -> Message | None:
        """The request, sent in pieces; its answer as far as it came, None when not even a head did."""
        client = self.client = await self.running.client()
        third = len(self.data) // 3
        for piece in (self.data[:third], self.data[third : 2 * third], self.data[2 * third :]):
            client.send(piece)
            await asyncio.sleep(0.0005)
        return await self.result(client)

    async def result(self, client: Client) -> Message | None:
        try:
            return await client.answer("POST", patience=30)
        except ConnectionError:
            return None

    async def before(self) -> None:
        """Make the situation anew."""
        for node in self.nodes:
            node.forget()
        if self.fresh:
            for node in self.nodes:
                for peer in list(node.open):
                    peer.rst()
            await eventually(lambda: not any(u.open for u in self.running.gateway.upstreams.values()))

    @property
    def nodes(self) -> tuple[FakeNode, FakeNode]:
        return self.node, self.other

    def executed(self) -> int:
        """How often the request came to a node in whole."""
        return sum(received.complete for node in self.nodes for received in node.log)

    async def after(self) -> None:
        """Undo what the disturbance did to the fleet."""
        fleet = self.running.gateway.balancer.fleet
        if set(fleet.nodes) != {"n1", "n2"}:
            self.running.reload(nodes=[node_entry(self.node), node_entry(self.other)])
        await eventually(lambda: all(node.state == "ready" for node in fleet.nodes.values()) and len(fleet.nodes) == 2)


async def in_pieces(received: Received, *pieces: bytes) -> None:
    await received.whole()
    for number, piece in enumerate(pieces):
        if number:
            await asyncio.sleep(0.0005)
        received.send(piece)


PLAIN = Answer(body=b'{"model":"m"}')
STREAM = Answer(headers=(("Content-Type", "text/event-stream"),), chunks=sse(delta("a"), delta("b")), framing="chunked")


def wire_of(answer: Answer) -> list[bytes]:
    """An answer as bytes: its head, and its pieces in their framing."""
    if answer.framing != "chunked":
        return [answer.head(), *answer.pieces()]
    return [answer.head(), *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in answer.pieces()), b"0\r\n\r\n"]


class Plain(Scene):
    data = request("POST", "/task", JSON, b'{"a":1}')

    async def script(self, received: Received) -> None:
        head, body = wire_of(PLAIN)
        await in_pieces(received, head[:20], head[20:], body[:5], body[5:])


class Streamed(Scene):
    data = post_chat(stream=True)
    executions = 2

    async def script(self, received: Received) -> None:
        await in_pieces(received, *wire_of(STREAM))


class Fresh(Streamed):
    fresh = True


class Aliased(Streamed):
    data = post_chat("other", stream=True)

    async def build(self) -> None:
        await super().build()
        self.running.reload(aliases={"other": "m"})


class Upload(Scene):
    """A body that is passed on while it comes."""

    data = request("POST", "/upload", body=bytes(200_000))

    async def script(self, received: Received) -> None:
        await in_pieces(received, *wire_of(PLAIN))


class Busy(Streamed):
    """The first node is busy: the request goes to the other."""

    needs_both = True

    async def script(self, received: Received) -> None:
        if sum(len(node.log) for node in self.nodes) == 1:
            await in_pieces(received, *wire_of(Answer(status=503, body=b"busy")))
        else:
            await in_pieces(received, *wire_of(STREAM))


class Dying(Streamed):
    """The first node breaks off: the chat goes to the other."""

    needs_both = True

    async def script(self, received: Received) -> None:
        if sum(len(node.log) for node in self.nodes) == 1:
            await received.whole()
            await asyncio.sleep(0.001)
            received.peer.rst()
        else:
            await in_pieces(received, *wire_of(STREAM))


class Queued(Streamed):
    """Both nodes are full, until the requests before this one have ended."""

    async def build(self) -> None:
        await super().build()
        self._limit()

    def _limit(self) -> None:
        self.running.reload(nodes=[node_entry(self.node, max_in_flight=1), node_entry(self.other, max_in_flight=1)])

    async def script(self, received: Received) -> None:
        if b"hold" in await received.whole():
            await self.free.wait()
        await in_pieces(received, *wire_of(STREAM))

    async def before(self) -> None:
        await super().before()
        self._limit()
        self.free = asyncio.Event()
        self.holding = [await self.running.client() for _ in range(2)]
        for client in self.holding:
            client.send(post_chat(stream=True, user="hold"))
        await eventually(lambda: sum(r.complete and b"hold" in r.body for node in self.nodes for r in node.log) == 2)

    def executed(self) -> int:
        return sum(r.complete and b"hold" not in r.body for node in self.nodes for r in node.log)

    async def once(self) -> Message | None:
        asyncio.get_running_loop().call_later(0.006, self.free.set)
        return await super().once()

    async def after(self) -> None:
        self.free.set()
        for client in self.holding:
            await self.result(client)
            client.fin()
        await super().after()


class Upgraded(Scene):
    """Client and node agree on a protocol of their own, say something each, and end it, the node first."""

    data = request("GET", "/ws", {"Connection": "Upgrade", "Upgrade": "mine"})
    status = 101

    async def script(self, received: Received) -> None:
        peer = received.peer
        await received.whole()
        peer.switched = peer.half_closes = True
        received.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mine\r\nConnection: Upgrade\r\n\r\nhe")
        await peer.until(lambda: peer.ended or bytes(peer.buffer) == b"question", 30)
        received.send(b"re")
        if not peer.ended:
            peer.transport.write_eof()
        await peer.gone(30)
        peer.fin()

    async def result(self, client: Client) -> Message | None:
        client.half_closes = True
        try:
            head = await client.head(patience=30)
        except ConnectionError:
            return None
        if head.status != 101:
            return await client.rest(head)
        client.send(b"question")
        await client.gone(30)
        head.complete = bytes(client.buffer) == b"here"
        client.fin()
        return head


SCENES: dict[str, type[Scene]] = {
    "plain": Plain,
    "streamed": Streamed,
    "connecting": Fresh,
    "aliased": Aliased,
    "upload": Upload,
    "busy": Busy,
    "dying": Dying,
    "queued": Queued,
    "upgraded": Upgraded,
}


def client_rst(scene: Scene) -> None:
    if not scene.client.closed:
        scene.client.rst()


def client_fin(scene: Scene) -> None:
    if not scene.client.closed:
        scene.client.fin()


def nodes_rst(scene: Scene) -> None:
    for node in scene.nodes:
        for peer in list(node.open):
            peer.rst()


def nodes_fin(scene: Scene) -> None:
    for node in scene.nodes:
        for peer in list(node.open):
            peer.fin()


def node_removed(scene: Scene) -> None:
    scene.running.reload(nodes=[node_entry(scene.other)])


def too_late(scene: Scene) -> None:
    now = scene.running.gateway.clock()
    for exchange in list(scene.running.gateway.exchanges):
        exchange.check(now + FOR_EVER)


def cut_by_gateway(scene: Scene) -> None:
    for client in list(scene.running.gateway.clients):
        client.abort()


DISTURBANCES: dict[str, Callable[[Scene], None]] = {
    "the client resets": client_rst,
    "the client closes": client_fin,
    "the nodes reset": nodes_rst,
    "the nodes close": nodes_fin,
    "a node is removed": node_removed,
    "it takes too long": too_late,
    "the gateway cuts the client": cut_by_gateway,
}
HARMLESS = ("a node is removed",)


ON_LOOPS = [(name, "uvloop") for name in SCENES] + [("streamed", "asyncio"), ("connecting", "asyncio")]


@pytest.mark.parametrize("disturbance", DISTURBANCES)
@pytest.mark.parametrize(("name", "loop"), ON_LOOPS)
async def test_T04_a_request_that_is_disturbed_at_any_step_leaves_nothing_behind(
    world: World, steps: Steps, name: str, loop: str, disturbance: str
) -> None:
    scene = SCENES[name](world, steps)
    await scene.build()
    running = scene.running
    step, struck, results = 0, True, set()
    while struck:
        assert step < 300, "there is no end of steps"
        await scene.before()
        # Step 0 is the undisturbed run.
        races = running.gateway.counters.retries.get("race", 0)
        steps.begin(step, lambda: DISTURBANCES[disturbance](scene))
        answer = await scene.once()
        steps.at = -1
        struck = steps.struck or step == 0
        where = f"{name}, {disturbance}, after step {step}"
        if step == 0 or (disturbance in HARMLESS and not scene.needs_both):
            assert answer is not None, where
            assert answer.complete, where
            assert answer.status == scene.status, where
        if answer is not None:
            assert answer.complete or scene.client.ended, where
            results.add((answer.status, answer.complete))
        races = running.gateway.counters.retries.get("race", 0) - races
        assert scene.executed() <= scene.executions + races, where
        await scene.after()
        try:
            await eventually(lambda: not running.leftovers(), patience=15)
        except AssertionError:
            raise AssertionError(f"{where}: {running.leftovers()}") from None
        step += 1
        if not scene.client.closed:
            scene.client.fin()
    assert step > 10, "the disturbance has struck at every step of a whole life"
    if disturbance.startswith("the nodes"):
        # Before the first byte of the answer it may have gone to the other node.
        assert results & {(502, True), (scene.status, False)} or running.gateway.counters.retries.get("broke"), results
    if disturbance == "it takes too long":
        assert (504, True) in results, results


async def test_T04_a_client_that_leaves_while_the_node_takes_no_connection(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, telemetry__interval="1h", defaults__timeouts__connect="20s")
    async with deaf(node):
        for end in (Client.rst, Client.fin):
            client = await running.client()
            client.send(post_chat())
            await eventually(lambda: any(e.attempt and e.attempt._connecting for e in running.exchanges))
            end(client)
            await eventually(lambda: not running.leftovers())
        client = await running.client()
        client.send(post_chat())
        await eventually(lambda: any(e.attempt and e.attempt._connecting for e in running.exchanges))
        running.reload(nodes=["http://127.0.0.1:1"])
        client.rst()
        await eventually(lambda: not running.leftovers())
    node.refuse()


# -- at every byte


@pytest.mark.parametrize("end", [Client.rst, Client.fin], ids=["rst", "fin"])
@pytest.mark.parametrize("kind", ["plain", "streamed", "chunked"])
async def test_T04_a_request_that_is_broken_off_at_any_byte(
    world: World, kind: str, end: Callable[[Client], None]
) -> None:
    data = {
        "plain": request("POST", "/task", JSON, b'{"a":1}'),
        "streamed": post_chat(stream=True),
        "chunked": request("POST", "/task", chunks=[b"abc", b"d"]),
    }[kind]
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node, telemetry__interval="1h")
    for length in range(len(data) + 1):
        client = await running.client()
        client.send(data[:length])
        for _ in range(3):
            await asyncio.sleep(0)
        end(client)
        world.clients.remove(client)
        if length % 20 == 0 or length == len(data):
            await eventually(lambda: not running.leftovers())
    assert node.executions <= 1, "only the whole request may have been executed"


@pytest.mark.parametrize("cut", ["rst", "fin"])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("event_stream", [False, True])
async def test_T04_an_answer_that_is_broken_off_at_any_byte(
    world: World, cut: str, framing: str, event_stream: bool
) -> None:
    kind = "text/event-stream" if event_stream else "application/json"
    whole = Answer(
        headers=(("Content-Type", kind),), chunks=[b'data: {"a":1}\n\n', b"data: [DONE]\n\n"], framing=framing
    )
    parts = wire_of(whole)
    data, head = b"".join(parts), len(parts[0])
    length = 0

    async def script(received: Received) -> None:
        await received.whole()
        received.send(data[:length])
        # What was sent must have left before a reset, which would take it along.
        await asyncio.sleep(0.002)
        if cut == "rst":
            received.peer.rst()
        else:
            received.peer.fin()

    node = await world.node(script=script, owner="generic")
    running = await world.serve(node, telemetry__interval="1h")
    for length in range(len(data) + 1):
        # A connection of its own, or a cut before the first byte might be taken for a keep-alive race.
        for peer in list(node.open):
            peer.rst()
        await eventually(lambda: not any(u.open for u in running.gateway.upstreams.values()))
        client = await running.client()
        client.send(request("POST", "/task", JSON, b'{"a":1}'))
        where = f"after byte {length} of {len(data)}"
        try:
            answer = await client.answer("POST")
        except (ConnectionError, WireError) as error:
            raise AssertionError(f"{where}: {error}") from error
        if length < head:
            assert answer.status == 502, where
            assert answer.complete, where
            assert json.loads(bytes(answer.body))["error"]["code"] == "node_broke"
        else:
            assert answer.status == 200, where
            legal = length == len(data) if framing != "close" else cut == "fin"
            assert answer.complete == legal, where
            if not legal:
                assert client.ended, where
        client.fin()
        world.clients.remove(client)
    await eventually(lambda: not running.leftovers())
    assert node.executions == len(data) + 1
