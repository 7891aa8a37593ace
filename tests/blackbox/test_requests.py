"""Requests on the wire: kept, pipelined and chunked ones, limits, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from steelyard.proxy.closing import FLUSH_SECONDS, LINGER_SECONDS
from steelyard.proxy.exchange import IDLE_BODY_SECONDS
from steelyard.proxy.server import PIPELINED_BYTES, ClientConnection
from tests.blackbox.fakenode import Answer, FakeNode, Received
from tests.blackbox.wire import Client, Message
from tests.blackbox.world import JSON, Running, World, chat, eventually, post_chat, request

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


async def echo(received: Received) -> None:
    """Answers with target and body of the request."""
    body = received.target.encode() + b"|" + await received.whole()
    if received.method == "HEAD":
        body = b""
    received.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def one(world: World, **changes: object) -> tuple[Running, FakeNode, Client]:
    node = await world.node(script=echo)
    running = await world.serve(node, **changes)
    return running, node, await running.client()


def code(answer: Message) -> str:
    return str(json.loads(bytes(answer.body))["error"]["code"])


# -- keep-alive and pipelining


@BOTH_LOOPS
async def test_one_connection_carries_many_requests(world: World, loop: str) -> None:
    running, _, client = await one(world)
    for number in range(50):
        method = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")[number % 6]
        body = None if method in ("GET", "DELETE") else b"x" * number
        answer = await client.ask(request(method, f"/{number}", body=body))
        assert bytes(answer.body) == b"/%d|%b" % (number, body or b"")
    assert running.gateway.counters.connections == 1


@BOTH_LOOPS
async def test_ten_requests_in_one_packet_get_ten_answers_in_order(world: World, loop: str) -> None:
    _, node, client = await one(world)
    client.send(b"".join(request("POST", f"/{n}", body=b"x" * n) for n in range(10)))
    for number in range(10):
        assert bytes((await client.answer("POST")).body) == b"/%d|%b" % (number, b"x" * number)
    assert [received.path for received in node.log] == [f"/{n}" for n in range(10)]


async def test_pipelined_requests_of_every_kind(world: World) -> None:
    _, _, client = await one(world)
    client.send(
        request("GET", "/1")
        + request("GET", "/health")
        + request("POST", "/2", chunks=[b"ab", b"c"])
        + request("HEAD", "/3")
        + request("POST", "/4", body=b"")
        + request("GET", "/v1/models")
        + request("GET", "/5", {"Connection": "close"})
        + request("GET", "/never")
    )
    assert bytes((await client.answer()).body) == b"/1|"
    assert bytes((await client.answer()).body) == b'{"status":"ok"}'
    assert bytes((await client.answer()).body) == b"/2|abc"
    assert (await client.answer("HEAD")).complete
    assert bytes((await client.answer()).body) == b"/4|"
    assert b'"m"' in (await client.answer()).body
    last = await client.answer()
    assert bytes(last.body) == b"/5|"
    assert last.get("connection") == b"close"
    await client.gone()
    assert not client.buffer


@pytest.mark.parametrize("bad", [b"BAD REQUEST\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_a_bad_request_after_good_ones_does_not_harm_them(world: World, bad: bytes) -> None:
    _, node, client = await one(world)
    client.send(b"".join(request("GET", f"/{n}") for n in range(5)) + bad)
    for number in range(5):
        assert bytes((await client.answer()).body) == b"/%d|" % number
    answer = await client.answer()
    assert answer.status == 400
    assert answer.get("connection") == b"close"
    await client.gone()
    assert len(node.log) == 5


async def test_hundreds_of_pipelined_requests(world: World) -> None:
    _, _, client = await one(world)
    client.send(b"".join(request("POST", f"/{n}", body=b"y" * 1000) for n in range(400)))
    for number in range(400):
        assert bytes((await client.answer("POST")).body) == b"/%d|%b" % (number, b"y" * 1000)


async def test_a_client_that_leaves_with_requests_in_line_stops_all_of_them(world: World) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node)
    client = await running.client()
    client.send(request("GET", "/x") * 5)
    await eventually(lambda: node.log)
    client.rst()
    await eventually(lambda: node.log[0].aborted_at)
    await running.at_rest()
    assert len(node.log) == 1


async def test_requests_are_read_ahead_up_to_a_limit(world: World) -> None:
    free = asyncio.Event()

    async def once_free(received: Received) -> None:
        await free.wait()
        await echo(received)

    node = await world.node(script=once_free)
    running = await world.serve(node)
    client = await running.client()
    one_request = request("POST", "/any", {"X-Padding": "x" * 8000}, chunks=[b"abc", b"de"])
    client.send(one_request * 1500)
    await eventually(lambda: node.log)
    await eventually(lambda: client.transport.get_write_buffer_size(), "the gateway reads no further")
    (server_side,) = running.gateway.clients
    assert isinstance(server_side, ClientConnection)
    assert server_side._ahead < PIPELINED_BYTES + (512 << 10)
    free.set()
    for _ in range(1500):
        assert bytes((await client.answer("POST")).body) == b"/any|abcde"
    assert len(node.log) == 1500


@pytest.mark.parametrize("gap", [0.0, 0.001])
async def test_a_request_byte_by_byte(world: World, gap: float) -> None:
    _, _, client = await one(world)
    data = request("POST", "/slow?a=b", {"X-A": "b"}, body=b"12345")
    for byte in data:
        client.send(bytes([byte]))
        await asyncio.sleep(gap)
    assert bytes((await client.answer("POST")).body) == b"/slow?a=b|12345"


# -- bodies


@pytest.mark.parametrize("target", ["/any", "/v1/chat/completions"])
@BOTH_LOOPS
async def test_a_chunked_request_reaches_the_node_whole(world: World, loop: str, target: str) -> None:
    _, node, client = await one(world)
    body = chat(content="z" * 3000)
    for sizes in ([1], [len(body)], [7, 500, 1, 2000], [3] * 200):
        pieces, rest = [], body
        for size in sizes:
            pieces.append(rest[:size])
            rest = rest[size:]
        answer = await client.ask(request("POST", target, JSON, chunks=[p for p in (*pieces, rest) if p]))
        assert bytes(answer.body) == target.encode() + b"|" + body
        assert node.log[-1].complete


async def test_chunk_extensions_and_trailers_do_not_reach_the_node(world: World) -> None:
    _, node, client = await one(world)
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Evil\r\n\r\n"
    body = b"3;ext=1\r\nabc\r\n0\r\nX-Evil: 1\r\nAuthorization: Bearer evil\r\nx-steelyard-tenant: evil\r\n\r\n"
    answer = await client.ask(head + body)
    assert bytes(answer.body) == b"/x|abc"
    assert node.log[0].get("x-evil") is None
    assert node.log[0].get("authorization") is None
    assert (await client.ask(request("GET", "/next"))).status == 200


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("target", ["/any", "/v1/chat/completions"])
async def test_large_bodies_pass_unchanged(world: World, framing: str, target: str) -> None:
    running, _, client = await one(world)
    body = chat(content="z" * (8 << 20))
    pieces = [body[i : i + 100_000] for i in range(0, len(body), 100_000)] if framing == "chunked" else None
    client.send(request("POST", target, JSON, None if pieces else body, chunks=pieces))
    answer = await client.answer("POST", patience=40)
    assert bytes(answer.body) == target.encode() + b"|" + body
    assert running.gateway.body_memory == 0


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"', b'{"model":5}', b"\xff\xfe", b'{"messages":[}', b""])
async def test_a_body_that_cannot_be_read_is_a_400_in_the_shape_of_the_dialect(world: World, body: bytes) -> None:
    _, node, client = await one(world)
    answer = await client.ask(request("POST", "/v1/chat/completions", JSON, body))
    assert answer.status == 400
    error = json.loads(bytes(answer.body))["error"]
    assert error["code"] == "malformed_request"
    assert error["type"] == "invalid_request_error"
    anthropic = await (await world.connect(world.gateways[0].port)).ask(request("POST", "/v1/messages", JSON, body))
    assert json.loads(bytes(anthropic.body))["type"] == "error"
    assert not node.log
    assert answer.keep_alive, "the request was whole: the connection is still good"
    assert (await client.ask(request("GET", "/next"))).status == 200


async def test_expect_100_is_answered_before_the_body_and_does_not_reach_the_node(world: World) -> None:
    _, node, client = await one(world)
    for target in ("/any", "/v1/chat/completions"):
        body = chat()
        client.send(request("POST", target, {**JSON, "Expect": "100-Continue", "Content-Length": str(len(body))}))
        await eventually(lambda: client.buffer.startswith(b"HTTP/1.1 100 "))
        client.send(body)
        answer = await client.answer("POST")
        assert [interim.status for interim in answer.interim] == [100]
        assert bytes(answer.body) == target.encode() + b"|" + body
        assert node.log[-1].get("expect") is None


async def test_a_node_s_early_answer_ends_the_upload(world: World) -> None:
    async def refuse(received: Received) -> None:
        received.send(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")

    node = await world.node(script=refuse, owner="generic")
    running = await world.serve(node)
    client = await running.client()
    client.send(request("POST", "/upload", {"Content-Length": "10000000"}) + b"x" * 100_000)
    answer = await client.answer("POST")
    assert (answer.status, bytes(answer.body)) == (403, b"no")
    assert answer.get("connection") == b"close"
    client.send(b"x" * 1_000_000)
    await client.gone()
    assert not client.reset, "what comes after the answer is thrown away for a while, not reset"


async def test_a_body_that_stops_coming_is_a_408(world: World) -> None:
    running, node, client = await one(world)
    client.send(request("POST", "/v1/chat/completions", {**JSON, "Content-Length": "100"}) + b"{")
    await eventually(lambda: running.exchanges, "the request has begun")
    for exchange in list(running.exchanges):
        exchange.check(running.gateway.clock() + IDLE_BODY_SECONDS - 1)
        assert not client.buffer, "not yet"
        exchange.check(running.gateway.clock() + IDLE_BODY_SECONDS + 1)
    del exchange
    answer = await client.answer("POST")
    assert answer.status == 408
    assert code(answer) == "client_timeout"
    await client.gone()
    assert not node.log


async def test_an_upload_that_stops_coming_is_a_408_and_the_node_sees_the_end(world: World) -> None:
    _running, node, client = await one(world, defaults__timeouts__idle="300ms")
    client.send(request("POST", "/upload", {"Content-Length": "1000000"}) + b"x" * 1000)
    answer = await client.answer("POST")
    assert answer.status == 408
    await eventually(lambda: node.log[0].peer.closed)
    assert node.executions == 0


async def test_a_node_that_takes_no_upload_is_the_one_that_is_silent(world: World) -> None:
    async def deaf(received: Received) -> None:
        received.peer.pause()
        await asyncio.sleep(2.5)
        received.peer.resume()

    node = await world.node(script=deaf, owner="generic")
    running = await world.serve(node, defaults__timeouts__idle="300ms")
    client = await running.client()
    client.send(request("POST", "/upload", {"Content-Length": str(32 << 20)}) + bytes(32 << 20))
    answer = await client.answer("POST")
    assert answer.status == 504
    assert code(answer) == "node_silent"


async def test_a_client_that_reads_nothing_is_given_up(world: World) -> None:
    node = await world.node(Answer(body=bytes(64 << 20)))
    running = await world.serve(node, defaults__timeouts__idle="400ms")
    client = await running.client()
    client.pause()
    client.send(request("GET", "/huge"))
    await eventually(lambda: running.gateway.begun and not running.exchanges)
    assert (await running.line())["outcome"] == "client_stalled"
    client.resume()


# -- limits


@pytest.mark.parametrize("target", ["/any", "/v1/chat/completions"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_the_limit_of_the_body_is_exact(world: World, target: str, framing: str) -> None:
    running, _node, _ = await one(world, limits__body="100000")
    for size, status in ((99_999, 200), (100_000, 200), (100_001, 413), (400_000, 413)):
        body = chat(content="")
        body = chat(content="c" * (size - len(body)))
        assert len(body) == size
        client = await running.client()
        pieces = [body[i : i + 30_000] for i in range(0, size, 30_000)]
        data = request(
            "POST",
            target,
            JSON,
            None if framing == "chunked" else body,
            chunks=pieces if framing == "chunked" else None,
        )
        answer = await client.ask(data)
        assert answer.status == status, size
        if status == 413:
            assert code(answer) == "body_too_large"
            assert b"100000" in answer.body
            assert answer.get("connection") == b"close"
            await client.gone()
            assert not client.reset, "the client can read the answer"
    await running.at_rest()
    assert sorted(line["status"] for line in running.lines()) == [200, 200, 413, 413]


async def test_a_length_over_the_limit_is_refused_without_a_100_and_without_the_body(world: World) -> None:
    _, node, client = await one(world, limits__body="1MiB")
    client.send(request("POST", "/v1/chat/completions", {"Content-Length": "2000000", "Expect": "100-continue"}))
    answer = await client.answer("POST")
    assert answer.status == 413
    assert answer.interim == []
    assert not node.log


async def test_a_client_that_sends_all_of_a_body_that_is_too_large_can_read_the_answer(world: World) -> None:
    _running, _, client = await one(world, limits__body="1MiB")
    data = request("POST", "/v1/chat/completions", JSON, bytes(12 << 20))
    client.send(data)
    answer = await client.answer("POST")
    assert answer.status == 413
    await client.gone()
    assert not client.reset


async def test_all_bodies_together_have_a_limit(world: World) -> None:
    running, _node, _ = await one(world, limits__body_memory="1MiB")
    waiting = []
    for _ in range(3):
        client = await running.client()
        client.send(request("POST", "/v1/chat/completions", {**JSON, "Content-Length": "500000"}) + b" " * 300_000)
        waiting.append(client)
    await eventually(lambda: running.gateway.body_memory == 900_000)
    extra = await running.client()
    extra.send(request("POST", "/v1/chat/completions", {**JSON, "Content-Length": "500000"}) + b" " * 300_000)
    answer = await extra.answer("POST")
    assert answer.status == 503
    assert code(answer) == "overloaded"
    assert answer.get("retry-after")
    for client in waiting:
        client.fin()
    await eventually(lambda: running.gateway.body_memory == 0)
    assert (await running.ask(post_chat())).status == 200


@pytest.mark.parametrize("where", ["target", "one header", "many headers", "many packets"])
async def test_headers_over_the_limit_are_a_431(world: World, where: str) -> None:
    running, node, client = await one(world, limits__headers="16KiB")
    if where == "target":
        client.send(request("GET", "/" + "a" * 20_000))
    elif where == "one header":
        client.send(request("GET", "/", {"X-Long": "a" * 20_000}))
    elif where == "many headers":
        client.send(request("GET", "/", [(f"X-{n}", "a" * 100) for n in range(200)]))
    else:
        client.send(b"GET / HTTP/1.1\r\n")
        for n in range(300):
            client.send(b"X-%d: %b\r\n" % (n, b"a" * 100))
            await asyncio.sleep(0)
    answer = await client.answer()
    assert answer.status == 431
    assert code(answer) == "headers_too_large"
    await client.gone()
    assert not node.log
    fits = await running.ask(request("GET", "/", {"X-Long": "a" * 15_000}))
    assert fits.status == 200


async def test_small_requests_in_large_packets_are_not_over_the_limit(world: World) -> None:
    _, _, client = await one(world, limits__headers="1000")
    client.send(request("GET", "/x", {"A": "b" * 500}) * 50)
    for _ in range(50):
        assert (await client.answer()).status == 200
    body = b"z" * 50_000
    assert (await client.ask(request("POST", "/x", {"A": "b" * 500}, body))).status == 200


async def test_a_head_that_does_not_end_is_a_408(world: World) -> None:
    from dataclasses import replace

    running, _, _ = await one(world)
    settings = running.gateway.settings
    running.gateway.settings = replace(settings, limits=replace(settings.limits, header_wait=0.3, keep_alive=0.3))
    slow, idle = await running.client(), await running.client()
    slow.send(b"GET / HTTP/1.1\r\nX-A: b\r\n")
    answer = await slow.answer()
    assert answer.status == 408
    await slow.gone()
    await idle.gone()
    assert idle.received == 0, "who has not asked gets no answer"


async def test_too_many_connections_get_a_503(world: World) -> None:
    running, _, first = await one(world, limits__connections=3)
    others = [await running.client() for _ in range(2)]
    extra = await running.client()
    answer = await extra.answer()
    assert answer.status == 503
    assert answer.get("retry-after")
    await extra.gone()
    for client in (first, *others):
        assert (await client.ask(request("GET", "/x"))).status == 200
    first.fin()
    await eventually(lambda: len(running.gateway.clients) == 2)
    assert (await running.ask(request("GET", "/x"))).status == 200


# -- what is no HTTP

GARBAGE = [
    b"\r\n\r\n\x00\x00\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n",
    b"GET /a b HTTP/1.1\r\n\r\n",
    b"GET / HTTP/2.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT evil:443 HTTP/1.1\r\nHost: evil\r\n\r\n",
    b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n",
]


@pytest.mark.parametrize(
    "garbage", GARBAGE, ids=lambda data: data[:70].decode("latin-1").encode("unicode_escape").decode()
)
async def test_garbage_gets_a_400_and_never_reaches_a_node(world: World, garbage: bytes) -> None:
    running, node, client = await one(world)
    client.send(garbage)
    answer = await client.answer()
    assert 400 <= answer.status < 500 or answer.status == 501
    assert answer.get("connection") == b"close"
    json.loads(bytes(answer.body))
    await client.gone()
    assert node.executions == 0
    assert (await running.ask(request("GET", "/x"))).status == 200


async def test_an_absolute_target_is_taken_for_its_path(world: World) -> None:
    _, node, client = await one(world)
    await client.ask(request("GET", "http://gateway.test/a?b=c"))
    await client.ask(request("GET", "HTTP://gateway.test"))
    await client.ask(request("OPTIONS", "*"))
    assert [received.target for received in node.log] == ["/a?b=c", "/", "*"]


async def test_an_upgrade_that_is_not_taken_is_ignored(world: World) -> None:
    _, node, client = await one(world)
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    client.send(request("GET", "/1", headers) + request("POST", "/2", headers, b"body") + request("GET", "/3"))
    for expected in (b"/1|", b"/2|body", b"/3|"):
        assert bytes((await client.answer()).body) == expected
    assert node.log[0].get("upgrade") is None
    assert node.log[0].get("http2-settings") is None


async def test_empty_lines_before_a_request_are_forgiven(world: World) -> None:
    _, _, client = await one(world)
    assert (await client.ask(b"\r\n\r\n" + request("GET", "/x"), "GET")).status == 200
    assert (await client.ask(b"\r\n" + request("GET", "/x"), "GET")).status == 200


async def test_a_half_closed_client_is_taken_for_gone(world: World) -> None:
    node = await world.node(Answer(hang="headers"))
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat())
    await eventually(lambda: node.executions)
    client.transport.write_eof()
    await eventually(lambda: node.log[0].aborted_at)


async def test_health_answers_itself_in_every_form(world: World) -> None:
    _, node, client = await one(world)
    for method in ("GET", "HEAD"):
        answer = await client.ask(request(method, "/health"))
        assert answer.status == 200
        assert answer.get("x-request-id")
    old = await (await world.connect(world.gateways[0].port)).ask(request("GET", "/health", version="1.0"))
    assert bytes(old.body) == b'{"status":"ok"}'
    assert not node.log


@pytest.mark.parametrize("target", ["/health", "/v1/models"])
async def test_a_body_that_nobody_asked_for_does_not_cost_its_client_the_answer(world: World, target: str) -> None:
    _, node, client = await one(world)
    client.send(request("GET", target, body=bytes(12 << 20)))
    assert (await client.answer("GET")).status == 200
    await client.gone()
    assert not client.reset
    assert not node.log


async def test_who_sends_on_after_its_answer_is_cut_after_a_moment(world: World) -> None:
    running, _, client = await one(world)
    client.half_closes = True
    client.send(request("GET", "/health", {"Content-Length": "999999999"}))
    assert (await client.head()).status == 200
    (connection,) = running.gateway.clients
    await eventually(lambda: client.eof)
    for _ in range(3):
        client.send(bytes(1000))
    assert not client.closed
    connection.check(running.gateway.clock() + LINGER_SECONDS)
    await eventually(lambda: not running.gateway.clients)
    client.rst()


async def narrow(running: Running) -> tuple[Client, ClientConnection]:
    """A connection with small segments and buffers, as over a slow line: client and gateway's side."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_000)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", running.port))
    _, client = await loop.create_connection(Client, sock=sock)
    running.world.clients.append(client)
    await eventually(lambda: running.gateway.clients)
    (connection,) = running.gateway.clients
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_000)
    return client, connection


async def test_who_takes_its_last_bytes_slowly_is_not_cut(world: World) -> None:
    size = 240_000  # Less than what waits in the gateway before its node is not read any more.
    node = await world.node(Answer(body=bytes(size)))
    running = await world.serve(node)
    client, connection = await narrow(running)
    client.pause()
    client.send(request("GET", "/x", {"Connection": "close"}))
    await eventually(lambda: connection._closing, "all of the answer is here, and waits for the client")
    now = running.gateway.clock() + FLUSH_SECONDS
    reads = 0
    while len(client.buffer) < size:
        before = len(client.buffer)
        client.resume()
        await client.until(lambda before=before: len(client.buffer) > before)
        client.pause()
        await asyncio.sleep(0.1)  # a delayed acknowledgement takes 40 ms
        reads += 1
        now += FLUSH_SECONDS
        connection.check(now)
    assert reads > 3
    client.resume()
    answer = await client.answer()
    assert len(answer.body) == size


async def test_who_takes_an_answer_slowly_is_not_given_up(world: World) -> None:
    size = 3_000_000
    node = await world.node(Answer(body=bytes(size)))
    running = await world.serve(node)
    client, _ = await narrow(running)
    client.pause()
    client.send(request("GET", "/x"))
    await eventually(lambda: running.exchanges and next(iter(running.exchanges))._paused_at)
    (exchange,) = running.exchanges
    now = running.gateway.clock()
    for _ in range(5):
        before = len(client.buffer)
        client.resume()
        await client.until(lambda before=before: len(client.buffer) > before)
        client.pause()
        await asyncio.sleep(0.1)
        now += 121.0
        exchange.check(now)
    assert running.exchanges
    exchange.check(now + 121.0)
    assert not running.exchanges
    assert (await running.line())["outcome"] == "client_stalled"


async def test_who_takes_nothing_of_its_last_bytes_is_cut(world: World) -> None:
    node = await world.node(Answer(body=bytes(240_000)))
    running = await world.serve(node)
    client, connection = await narrow(running)
    client.pause()
    client.send(request("GET", "/x", {"Connection": "close"}))
    await eventually(lambda: connection._closing)
    await asyncio.sleep(0.05)
    now = running.gateway.clock() + FLUSH_SECONDS
    connection.check(now)  # It has taken what fits into its system's buffer.
    connection.check(now + FLUSH_SECONDS + 1)
    await eventually(lambda: not running.gateway.clients)
    client.resume()
    await client.until(lambda: client.closed)


async def test_bytes_behind_a_bad_request_do_not_harm_the_one_before(world: World) -> None:
    node = await world.node(Answer(ttft=0.3))
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat() + b"GET / HTTP/1.1\r\n\r\n")  # no Host
    await eventually(lambda: node.log)
    client.send(b"GET /more HTTP/1.1\r\n")
    assert (await client.answer("POST")).status == 200
    assert (await client.answer()).status == 400
    await client.gone()


async def test_a_client_that_leaves_is_seen_while_a_node_takes_no_body(world: World) -> None:
    async def take_nothing(received: Received) -> None:
        received.peer.pause()
        await asyncio.sleep(1)
        received.peer.resume()
        await received.gone()

    node = await world.node(script=take_nothing)
    running = await world.serve(node)
    client = await running.client()
    client.send(post_chat(content="x" * 20_000_000))
    await eventually(lambda: running.exchanges and next(iter(running.exchanges)).received)
    client.rst()
    await eventually(lambda: not running.exchanges, patience=0.9)
    assert (await running.line())["outcome"] == "client_gone"


async def test_a_deadline_that_passes_during_the_upload_ends_the_request(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    whole = post_chat(headers={"x-request-timeout": "200ms"})
    client.send(whole[:-1])
    await asyncio.sleep(0.4)
    client.send(whole[-1:])
    answer = await client.answer("POST")
    assert answer.status == 504
    assert json.loads(bytes(answer.body))["error"]["code"] == "deadline_exceeded"
    assert not node.log


async def test_a_name_that_no_header_has_is_not_remembered(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    name = "x-" + "n" * 1000
    assert (await running.ask(request("GET", "/health", {name: "v"}))).status == 200
    assert all(len(spelling) < 100 for spelling in running.gateway.table.known)


@pytest.mark.parametrize(("pattern", "status"), [("/sdapi/*", 403), ("/sdapi/v1/server-kill", 200)])
async def test_a_pattern_opens_no_administration(world: World, pattern: str, status: int) -> None:
    node = await world.node(owner="sdwebui")
    running = await world.serve(node, routes=[{"name": "images", "match": {"path": pattern}}])
    answer = await running.ask(request("POST", "/sdapi/v1/server-kill", JSON, b"{}"))
    assert answer.status == status
    assert len(node.log) == (status == 200)
