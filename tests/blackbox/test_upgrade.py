"""T70: WebSockets and other protocols that client and node agree on, relayed byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from steelyard.proxy.tunnel import HALF_CLOSED_SECONDS, IDLE_SECONDS
from steelyard.proxy.websocket import close_frame
from tests.blackbox.fakenode import Answer, FakeNode, Received
from tests.blackbox.wire import Client, Message, Peer
from tests.blackbox.world import Running, World, eventually, request

OFFER = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Mine: 1\r\n\r\n"
HELLO = b"\x81\x05hello"


def agree(*, behind: bytes = b"", protocol: bytes = b"websocket") -> Callable[[Received], Awaitable[None]]:
    """A node that switches, and whose bytes are then the test's, in `received.peer`."""

    async def script(received: Received) -> None:
        peer = received.peer
        await received.whole()
        peer.switched = peer.half_closes = True
        received.send(AGREED.replace(b"websocket", protocol) + behind)
        await peer.until(lambda: peer.closed, 50)

    return script


async def switched(
    world: World, *, behind: bytes = b"", early: bytes = b"", protocol: str = "websocket", **changes: Any
) -> tuple[Running, FakeNode, Client, Message, Received]:
    """A tunnel: gateway, node, client, the head that the client got, the request that the node got."""
    node = await world.node(script=agree(behind=behind, protocol=protocol.encode()))
    running = await world.serve(node, **changes)
    client = await running.client()
    client.half_closes = True
    client.send(request("GET", "/ws?room=1", {**OFFER, "Upgrade": protocol}) + early)
    head = await client.head()
    assert head.status == 101
    return running, node, client, head, node.log[0]


async def test_client_and_node_agree_and_bytes_pass_both_ways(world: World) -> None:
    running, node, client, head, received = await switched(world)
    assert received.get("upgrade") == b"websocket"
    assert received.get("connection") == b"Upgrade"
    assert received.get("sec-websocket-version") == b"13"
    assert received.target == "/ws?room=1"
    assert head.get("upgrade") == b"websocket"
    assert head.get("connection") == b"Upgrade"
    assert head.get("x-mine") == b"1"
    assert head.get("x-steelyard-node") == node.name.encode()
    assert head.get("x-request-id") == received.get("x-request-id")
    assert running.in_flight(node) == 1, "the lease stands as long as the tunnel"
    peer = received.peer
    for piece in (b"\x82\x03abc", b"GET / HTTP/1.1\r\n\r\n", bytes(100_000)):
        client.send(piece)
        await peer.until(lambda piece=piece: bytes(peer.buffer) == piece)
        peer.buffer.clear()
        peer.send(piece[::-1])
        await client.until(lambda piece=piece: bytes(client.buffer) == piece[::-1])
        client.buffer.clear()
    assert running.lines() == []
    client.fin()
    await peer.gone()
    peer.fin()
    line = await running.line()
    assert (line["status"], line["outcome"]) == (101, "ok")
    assert line["bytes_in"] == line["bytes_out"] == 100_023
    assert line["node"] == node.name


async def test_bytes_that_come_with_the_heads_are_not_lost(world: World) -> None:
    _, _, client, _, received = await switched(world, behind=HELLO, early=b"early")
    await client.until(lambda: bytes(client.buffer) == HELLO)
    await received.peer.until(lambda: bytes(received.peer.buffer) == b"early")
    client.rst()


async def test_a_refused_upgrade_leaves_the_connection_as_it_was(world: World) -> None:
    node = await world.node(Answer(status=426, body=b"no"))
    running = await world.serve(node)
    client = await running.client()
    client.send(request("GET", "/ws", OFFER) + request("GET", "/next", OFFER) + request("POST", "/last", body=b"abc"))
    assert (await client.answer()).status == 426
    assert (await client.answer()).status == 426
    assert (await client.answer("POST")).status == 426
    assert [received.target for received in node.log] == ["/ws", "/next", "/last"]
    assert bytes(node.log[2].body) == b"abc"
    assert (await client.ask(request("GET", "/again"))).status == 426


async def test_what_the_gateway_itself_answers_refuses_the_upgrade(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    client.send(request("GET", "/health", OFFER) + request("GET", "/v1/models", OFFER) + request("GET", "/x"))
    for _ in range(3):
        assert (await client.answer()).status == 200
    assert [received.target for received in node.log] == ["/x"]


@pytest.mark.parametrize("offer", ["h2c", "HTTP/2.0", "TLS/1.2", "websocket, h2c", "web socket", "a/b/c"])
async def test_protocols_behind_which_anything_could_be_asked_for_are_not_offered(world: World, offer: str) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    for _ in range(2):
        assert (await client.ask(request("GET", "/x", {"Connection": "upgrade", "Upgrade": offer}))).status == 200
    assert [received.get("upgrade") for received in node.log] == [None, None]


@pytest.mark.parametrize(
    ("version", "body", "connection"), [("1.0", None, "upgrade"), ("1.1", b"abc", "upgrade"), ("1.1", None, "close")]
)
async def test_an_upgrade_needs_http11_no_body_and_its_mention_in_connection(
    world: World, version: str, body: bytes | None, connection: str
) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    headers = {"Connection": connection, "Upgrade": "websocket"}
    assert (await client.ask(request("GET", "/x", headers, body, version=version))).status == 200
    assert node.log[0].get("upgrade") is None


@pytest.mark.parametrize("agreed", [b"Upgrade: other\r\n", b""])
async def test_a_node_that_switches_to_what_it_was_not_offered_is_broken(world: World, agreed: bytes) -> None:
    node = await world.node(Answer(raw=b"HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\n" + agreed + b"\r\n"))
    running = await world.serve(node)
    answer = await running.ask(request("GET", "/ws", OFFER))
    assert answer.status == 502


async def test_any_protocol_may_be_half_closed_from_either_side(world: World) -> None:
    for first in ("client", "node"):
        running, _, client, _, received = await switched(world, protocol="my-protocol/2")
        one, other = (client, received.peer) if first == "client" else (received.peer, client)
        one.transport.write_eof()
        await other.until(lambda other=other: other.eof)
        other.send(b"x" * 300_000)
        await one.until(lambda one=one: len(one.buffer) == 300_000)
        other.transport.write_eof()
        await one.gone()
        assert (await running.line())["outcome"] == "ok"


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1008, 1011, 3000, 4999])
@pytest.mark.parametrize("first", ["client", "node"])
async def test_close_frames_pass_with_their_codes(world: World, code: int, first: str) -> None:
    running, _, client, _, received = await switched(world)
    one, other = (client, received.peer) if first == "client" else (received.peer, client)
    mask = b"mask"
    one.send(close_frame(code, "bye", mask if first == "client" else b""))
    await other.until(lambda: other.buffer.endswith(close_frame(code, "bye", mask if first == "client" else b"")))
    other.send(close_frame(code, "", b"" if first == "client" else mask))
    await one.until(lambda: len(one.buffer) >= 4)
    received.peer.fin()
    client.fin()
    line = await running.line()
    assert (line["status"], line["outcome"]) == (101, "ok")


@pytest.mark.parametrize("how", ["rst", "fin"])
async def test_a_client_hears_with_a_close_frame_that_its_node_broke_off(world: World, how: str) -> None:
    running, _, client, _, received = await switched(world, behind=HELLO)
    await client.until(lambda: bytes(client.buffer) == HELLO)
    getattr(received.peer, how)()
    await client.gone()
    assert client.buffer[len(HELLO)] == 0x88
    assert int.from_bytes(client.buffer[len(HELLO) + 2 : len(HELLO) + 4], "big") == 1014
    line = await running.line()
    assert (line["status"], line["outcome"]) == (101, "node_broke")


async def test_within_a_frame_the_connection_breaks_for_the_client_too(world: World) -> None:
    running, _, client, _, received = await switched(world, behind=b"\x81\x7e\xff\xffabc")
    await client.until(lambda: len(client.buffer) == 7)
    received.peer.rst()
    await client.until(lambda: client.closed)
    assert client.reset
    assert len(client.buffer) == 7
    assert (await running.line())["outcome"] == "node_broke"


@pytest.mark.parametrize("how", ["rst", "fin"])
async def test_a_client_that_leaves_frees_the_node(world: World, how: str) -> None:
    running, node, client, _, received = await switched(world, behind=HELLO)
    getattr(client, how)()
    await received.gone()
    received.peer.fin()
    await eventually(lambda: running.in_flight(node) == 0)
    assert (await running.line())["outcome"] == ("client_gone" if how == "rst" else "ok")


async def flooded(peer: Peer) -> int:
    """Bytes that a peer could send before it had to wait."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 200 << 20:
            async with asyncio.timeout(1):
                await peer.send_gently(bytes(1 << 20))
            sent += 1 << 20
    return sent


async def test_a_client_that_does_not_read_slows_its_node_down(world: World) -> None:
    running, _, client, _, received = await switched(world, protocol="raw")
    client.pause()
    sent = await flooded(received.peer)
    assert sent < 100 << 20
    (connection,) = (c for c in running.exchanges if c.tunnel is not None)
    assert connection.client._transport.get_write_buffer_size() < 2 << 20
    client.resume()
    await client.until(lambda: len(client.buffer) >= sent, 40)
    client.rst()


async def test_a_node_that_does_not_read_slows_its_client_down(world: World) -> None:
    running, _, client, _, received = await switched(world, protocol="raw")
    received.peer.pause()
    sent = await flooded(client)
    assert sent < 100 << 20
    (upstream,) = running.gateway.upstreams.values()
    assert sum(c.transport.get_write_buffer_size() for c in upstream.open) < 2 << 20
    received.peer.resume()
    await received.peer.until(lambda: len(received.peer.buffer) >= sent, 40)
    client.rst()


async def test_the_time_of_requests_does_not_count_for_tunnels(world: World) -> None:
    running, _, client, _, received = await switched(world)
    running.set_timeouts(total=0.1, idle=0.1, first_byte=0.1)
    await asyncio.sleep(0.8)
    client.send(HELLO)
    await received.peer.until(lambda: bytes(received.peer.buffer) == HELLO)
    client.rst()


def later(running: Running, seconds: float) -> None:
    """What the gateway's clock brings so many seconds from now."""
    for exchange in list(running.exchanges):
        exchange.check(running.gateway.clock() + seconds)


async def test_silence_may_be_long(world: World) -> None:
    running, _, client, _, received = await switched(world)
    later(running, IDLE_SECONDS - 5)
    assert running.exchanges
    later(running, IDLE_SECONDS + 5)
    await client.gone()
    assert bytes(client.buffer[2:4]) == (1001).to_bytes(2, "big")
    await received.gone()
    assert (await running.line())["outcome"] == "client_timeout"


@pytest.mark.parametrize("first", ["client", "node"])
async def test_after_one_side_has_ended_it_is_short(world: World, first: str) -> None:
    running, _, client, _, received = await switched(world, protocol="mine")
    one, other = (client, received.peer) if first == "client" else (received.peer, client)
    one.transport.write_eof()
    await other.until(lambda: other.eof)
    later(running, HALF_CLOSED_SECONDS - 5)
    assert running.exchanges
    later(running, HALF_CLOSED_SECONDS + 5)
    assert not running.exchanges
    client.fin()
    received.peer.fin()
    assert (await running.line())["outcome"] == "ok"


async def test_a_client_that_reads_nothing_is_given_up(world: World) -> None:
    running, _, client, _, received = await switched(world, protocol="raw")
    client.pause()
    (exchange,) = running.exchanges
    received.peer.send(bytes(40 << 20))
    await eventually(lambda: exchange._paused_at)
    later(running, 119)
    assert running.exchanges
    later(running, 121)
    await received.gone()
    assert (await running.line())["outcome"] == "client_stalled"


async def test_no_frame_follows_a_close_frame(world: World) -> None:
    running, _, client, _, received = await switched(world, behind=close_frame(1000, ""))
    client.send(close_frame(1000, "", b"mask"))
    await received.peer.until(lambda: len(received.peer.buffer) == 8)
    await running.stop()
    await received.gone()
    await client.gone()
    assert bytes(client.buffer) == close_frame(1000, "")
    assert bytes(received.peer.buffer) == close_frame(1000, "", b"mask")


async def test_both_sides_hear_that_the_gateway_ends(world: World) -> None:
    running, _, client, _, received = await switched(world)
    await running.stop()
    await client.gone()
    assert bytes(client.buffer[:1]) == b"\x88"
    assert int.from_bytes(client.buffer[2:4], "big") == 1001
    await received.peer.gone()
    frame = bytes(received.peer.buffer)
    assert frame[:1] == b"\x88"
    assert frame[1] & 128, "a client's frames are masked"
    assert bytes(a ^ b for a, b in zip(frame[6:8], frame[2:4], strict=True)) == (1001).to_bytes(2, "big")


async def test_a_busy_node_s_upgrade_goes_to_another(world: World) -> None:
    busy, free = await world.node(Answer(status=503, body=b"busy")), await world.node(script=agree())
    running = await world.serve(busy, free, defaults__policy="round-robin")
    for _ in range(2):
        client = await running.client()
        client.send(request("GET", "/v1/realtime?model=m", OFFER))
        assert (await client.head()).status == 101
        client.rst()
    assert len(busy.log) == 1
    assert len(free.log) == 2


async def test_realtime_goes_by_the_model_of_its_query_and_by_the_key_among_its_protocols(world: World) -> None:
    one, other = (
        await world.node(script=agree(), models=("m",)),
        await world.node(script=agree(), models=("whisper-1",)),
    )
    running = await world.serve(
        one, other, aliases={"gpt-realtime": "whisper-1"}, auth__keys=[{"key": "right-key", "tenant": "art"}]
    )
    client = await running.client()
    offer = {**OFFER, "Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.right-key"}
    client.send(request("GET", "/v1/realtime?intent=x&model=gpt-realtime", offer))
    assert (await client.head()).status == 101
    assert not one.log
    assert other.log[0].target == "/v1/realtime?intent=x&model=whisper-1"
    assert other.log[0].get("sec-websocket-protocol") == b"realtime"
    assert "right-key" not in repr(other.log[0].headers)
    client.rst()
    wrong = await running.client()
    wrong.send(request("GET", "/v1/realtime?model=m", {**OFFER, "Sec-WebSocket-Protocol": "realtime"}))
    assert (await wrong.head()).status == 401
    unknown = await running.client()
    unknown.send(request("GET", "/v1/realtime?model=none", offer))
    assert (await unknown.head()).status == 404


# -- a library's client and server at both ends


@contextlib.asynccontextmanager
async def library_node(
    world: World, handler: Callable[[ServerConnection], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[Running, str]]:
    """A gateway before a server of `websockets`, and the address to connect to."""

    async def plain(connection: ServerConnection, asked: Request) -> Response | None:
        if "upgrade" in asked.headers:
            return None
        return connection.respond(HTTPStatus.OK if asked.path == "/health" else HTTPStatus.NOT_FOUND, "")

    server: Server
    async with serve(handler, "127.0.0.1", 0, process_request=plain, max_size=None, **options) as server:
        port = server.sockets[0].getsockname()[1]
        running = await world.serve({"name": "ws", "url": f"http://127.0.0.1:{port}", "engine": "generic"})
        yield running, f"ws://127.0.0.1:{running.port}/ws"
        await eventually(lambda: not running.exchanges)


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def test_a_library_s_messages_pass_large_ones_too_and_pings(world: World) -> None:
    async with library_node(world, echo) as (_, address), connect(address, max_size=None) as client:
        for message in ("hello", b"\x00\xff", "ü" * 70_000, bytes(4 << 20)):
            await client.send(message)
            assert await client.recv() == message
        await (await client.ping())


async def test_a_library_s_subprotocols_and_extensions_are_negotiated(world: World) -> None:
    async with (
        library_node(world, echo, subprotocols=["realtime"]) as (_, address),
        connect(address, subprotocols=["other", "realtime"], compression="deflate") as client,  # type: ignore[list-item]
    ):
        assert client.subprotocol == "realtime"
        assert client.protocol.extensions
        await client.send("a" * 10_000)
        assert await client.recv() == "a" * 10_000


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3999, 4000])
@pytest.mark.parametrize("first", ["client", "server"])
async def test_a_library_s_close_codes(world: World, code: int, first: str) -> None:
    seen: list[int | None] = []

    async def handler(connection: ServerConnection) -> None:
        if first == "server":
            await connection.close(code, "because")
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
        await connection.wait_closed()
        seen.append(connection.close_code)

    async with library_node(world, handler) as (running, address):
        async with connect(address) as client:
            if first == "client":
                await client.close(code, "because")
            await client.wait_closed()
            assert (client.close_code, client.close_reason) == (code, "because")
        await eventually(lambda: seen)
        assert seen == [code]
        assert (await running.line())["outcome"] == "ok"


async def test_a_library_s_client_hears_of_a_dead_node(world: World) -> None:
    async def die(connection: ServerConnection) -> None:
        await connection.recv()
        connection.transport.abort()

    async with library_node(world, die) as (_, address), connect(address) as client:
        await client.send("die")
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1014


async def test_a_library_s_client_sees_a_refusal(world: World) -> None:
    async with library_node(world, echo) as (running, _):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{running.port}/v1/sleep/../../sleep"):
                pass
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["error"]["code"] == "forbidden"
