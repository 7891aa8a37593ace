"""Answers byte by byte: the body as the node sent it, in a framing that is legal for the client."""

from __future__ import annotations

import hashlib
import random

import pytest

from tests.blackbox.fakenode import Answer, Received, delta, sse
from tests.blackbox.world import JSON, World, eventually, post_chat, request

BINARY = random.Random(1).randbytes(300_000)
BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])

# What the node sends -> what the client must get: (version of the client) -> framing.
FRAMINGS = [
    ("length", "1.1", "length"),
    ("chunked", "1.1", "chunked"),
    ("close", "1.1", "chunked"),
    ("length", "1.0", "length"),
    ("chunked", "1.0", "close"),
    ("close", "1.0", "close"),
]


@BOTH_LOOPS
@pytest.mark.parametrize(("sent", "version", "expected"), FRAMINGS)
async def test_T41_the_framing_is_chosen_for_the_client(
    world: World, loop: str, sent: str, version: str, expected: str
) -> None:
    pieces = [BINARY[:1], BINARY[1:70_000], BINARY[70_000:]]
    node = await world.node(
        Answer(headers=(("Content-Type", "application/octet-stream"),), chunks=pieces, framing=sent)
    )
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("GET", "/file", version=version))
    assert answer.framing == expected
    assert answer.complete
    assert bytes(answer.body) == BINARY
    if version == "1.1":
        # The connection is still good.
        node.answer = Answer(body=b"again")
        assert bytes((await client.ask(request("GET", "/file"))).body) == b"again"
    else:
        await client.gone()
        assert (answer.get("connection") or b"close") == b"close"


async def test_T41_a_kept_http10_connection_serves_another_request(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    for _ in range(3):
        answer = await client.ask(request("GET", "/x", {"Connection": "keep-alive"}, version="1.0"))
        assert answer.get("connection") == b"keep-alive"
    client.send(request("GET", "/x", version="1.0"))
    await client.answer()
    await client.gone()


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_T41_an_answer_to_head_has_no_body_and_keeps_its_length(world: World, framing: str) -> None:
    node = await world.node(Answer(body=b"x" * 1234, framing=framing))
    running = await world.serve(node)
    client = await running.client()
    for _ in range(3):
        answer = await client.ask(request("HEAD", "/file"))
        assert answer.complete
        assert not client.buffer
        assert answer.get("content-length") == (b"1234" if framing == "length" else None)
    assert bytes((await client.ask(request("GET", "/file"))).body) == b"x" * 1234


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_T41_204_and_304_have_no_body(world: World, status: int, version: str) -> None:
    # A 204 has no length (RFC 9110, 8.6); some servers write one.
    head = b'HTTP/1.1 %d Fine\r\nETag: "a"\r\nContent-Length: 77\r\n\r\n' % status
    node = await world.node(Answer(raw=head))
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("GET", "/file", {"Connection": "keep-alive"}, version=version))
    assert answer.status == status
    assert answer.complete
    assert answer.framing == "none"
    assert answer.get("etag") == b'"a"'
    assert answer.get("transfer-encoding") is None
    assert answer.get("content-length") == (b"77" if status == 304 else None)
    node.answer = Answer(body=b"next")
    again = await client.ask(request("GET", "/file", {"Connection": "keep-alive"}, version=version))
    assert bytes(again.body) == b"next"


async def test_T41_an_empty_body_in_every_framing(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    client = await running.client()
    for framing in ("length", "chunked", "close"):
        node.answer = Answer(body=b"", chunks=[], framing=framing)
        answer = await client.ask(request("GET", "/file"))
        assert answer.complete
        assert answer.body == b""


async def test_T41_interim_answers_pass_and_the_final_one_counts(world: World) -> None:
    raw = (
        b"HTTP/1.1 102 Processing\r\nX-Step: 1\r\nContent-Length: 9\r\n\r\n"
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    node = await world.node(Answer(raw=raw))
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("GET", "/file"))
    assert [interim.status for interim in answer.interim] == [102, 103]
    assert answer.interim[1].get("link") == b"</a>; rel=preload"
    assert bytes(answer.body) == b"ok"
    # A client of HTTP/1.0 does not know them (RFC 9110, 15.2).
    old = await (await running.client()).ask(request("GET", "/file", version="1.0"))
    assert old.interim == []
    assert bytes(old.body) == b"ok"


async def test_T41_a_node_that_sends_both_length_and_coding_is_not_believed(world: World) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    node = await world.node(Answer(raw=raw))
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("GET", "/file"))
    # Either refused, or read as chunked (RFC 9112, 6.3): never relayed with both.
    assert answer.status == 502 or bytes(answer.body) == b"ok"
    assert not (answer.all("content-length") and answer.all("transfer-encoding"))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 099 No Such Status\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 000 Nothing\r\n\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nNo colon here\r\n\r\n",
        b"\x00\x01\x02",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nwhatever",
    ],
)
async def test_T41_an_answer_that_is_no_http_is_a_502_and_its_connection_is_closed(world: World, raw: bytes) -> None:
    node = await world.node(Answer(raw=raw))
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("POST", "/task", body=b"x"))
    assert answer.status == 502
    assert b"node_broke" in answer.body
    assert (await running.line())["outcome"] == "node_broke"
    await eventually(lambda: node.log[0].peer.closed, "the broken connection is closed")
    node.answer = Answer(body=b"fine")
    assert bytes((await client.ask(request("GET", "/x"))).body) == b"fine"


async def test_T41_bytes_after_the_answer_do_not_reach_the_next_request(world: World) -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
    node = await world.node(Answer(raw=first + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"))
    running = await world.serve(node)
    client = await running.client()
    assert bytes((await client.ask(request("GET", "/a"))).body) == b"one"
    node.answer = Answer(body=b"two")
    assert bytes((await client.ask(request("GET", "/b"))).body) == b"two"


async def test_T41_an_unasked_answer_on_an_idle_connection_is_thrown_away(world: World) -> None:
    node = await world.node(Answer(body=b"one"))
    running = await world.serve(node, telemetry__interval="1h")
    client = await running.client()
    await client.ask(request("GET", "/a"))
    (idle,) = node.open
    idle.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 6\r\n\r\npoison")
    await eventually(lambda: not node.open, "the gateway closed it")
    assert bytes((await client.ask(request("GET", "/b"))).body) == b"one"


@pytest.mark.parametrize("cut", [False, True])
async def test_trailers_of_an_answer_are_not_headers(world: World, cut: bool) -> None:
    async def script(received: Received) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n"
        trailer = b"0\r\nX-Sum: 42\r\n\r\n"
        if cut:
            received.send(head)
            await eventually(lambda: client.received, "the head is relayed")
            received.send(trailer)
        else:
            received.send(head + trailer)

    node = await world.node(script=script)
    running = await world.serve(node)
    client = await running.client()
    answer = await client.ask(request("GET", "/file"))
    assert bytes(answer.body) == b"ok"
    assert answer.get("x-sum") is None


# -- T43, T44


async def test_T43_headers_pass_as_they_are_and_none_is_doubled(world: World) -> None:
    headers = (
        ("Server", "uvicorn"),
        ("Date", "Mon, 30 Nov 2026 08:00:00 GMT"),
        ("Set-Cookie", "a=1; Path=/"),
        ("Set-Cookie", "b=2, with comma; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
        ("SET-cookie", "c=3"),
        ("X-MiXed-Case", "Kept"),
        ("Content-Type", "application/json"),
        ("X-Empty", ""),
        ("Vary", "a"),
        ("Vary", "b"),
    )
    node = await world.node(Answer(headers=headers))
    running = await world.serve(node)
    answer = await running.ask(post_chat())
    assert answer.all("server") == [b"uvicorn"]
    assert answer.all("date") == [b"Mon, 30 Nov 2026 08:00:00 GMT"]
    got = [(name, value.decode()) for name, value in answer.headers]
    assert [pair for pair in got if pair in headers] == list(headers)
    assert len(answer.all("content-length")) == 1
    assert len(answer.all("x-request-id")) == 1


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("audio/mpeg", b"ID3\x04\x00" + BINARY),
        ("image/png", b"\x89PNG\r\n\x1a\n\r\n\r\n0\r\n\r\n" + BINARY),
        ("audio/pcm", b"\n\n" * 1000 + b"data: [DONE]\n\n"),
        ("text/event-stream", BINARY),
        ("application/json", BINARY),
    ],
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_T44_binary_bodies_are_what_the_node_sent(
    world: World, content_type: str, body: bytes, framing: str
) -> None:
    pieces = [body[start : start + 9_999] for start in range(0, len(body), 9_999)]
    node = await world.node(Answer(headers=(("Content-Type", content_type),), chunks=pieces, framing=framing))
    running = await world.serve(node)
    ask = request("POST", "/v1/audio/speech", JSON, b'{"model":"m","input":"hello"}')
    answer = await running.ask(ask)
    assert answer.get("content-type") == content_type.encode()
    assert hashlib.sha256(bytes(answer.body)).digest() == hashlib.sha256(body).digest()
    assert answer.complete


async def test_T44_the_query_and_the_multipart_body_reach_the_node_unchanged(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\r\n--bx\r\n'
        + BINARY
        + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    )
    kind = "multipart/form-data; boundary=b"
    answer = await running.ask(
        request("POST", "/v1/audio/transcriptions?timestamp=word&a=%2F", {"Content-Type": kind}, body)
    )
    assert answer.status == 200
    assert node.log[0].target == "/v1/audio/transcriptions?timestamp=word&a=%2F"
    assert bytes(node.log[0].body) == body
    assert node.log[0].get("content-type") == kind.encode()
    assert (await running.line())["model"] == "m"


async def test_a_compressed_answer_is_not_touched(world: World) -> None:
    import gzip

    body = gzip.compress(b"".join(sse(delta("a"))))
    node = await world.node(
        Answer(headers=(("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")), body=body)
    )
    running = await world.serve(node, aliases={"other": "m"})
    answer = await running.ask(post_chat("other", stream=True, headers={"Accept-Encoding": "gzip"}))
    assert bytes(answer.body) == body
    assert node.log[0].get("accept-encoding") == b"gzip"
