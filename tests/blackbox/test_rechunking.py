"""However the bytes are cut, the result is the same: through a real gateway, both ways."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blackbox.fakenode import FakeNode, Received
from tests.blackbox.world import JSON, Running, World, eventually, post_chat, request

EXAMPLES = 80


class Lasting:
    """A gateway and a node on a loop that outlives the examples of a property."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self.world = World(path)
        self.changes = changes
        self.node: FakeNode
        self.running: Running

    def __enter__(self) -> Lasting:
        self.loop.run_until_complete(self._begin())
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.loop.run_until_complete(self.world.close(check=kind is None))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _begin(self) -> None:
        self.world.begin()
        self.node = await self.world.node()
        self.running = await self.world.serve(self.node, telemetry__interval="1h", **self.changes)

    def run(self, scene: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(scene, 30))


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at these places."""
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places) if a < b]


VARIABLE = ("x-request-id",)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": 'é\u2028 "model": \\ x'}]}).encode()
MULTIPART = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\r\n--bx\r\n\xff\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
)
REQUESTS = [
    request("GET", "/a?b=c", {"X-A": "b", "Cookie": "a=b"}),
    request("POST", "/v1/chat/completions", JSON, BODY),
    request("POST", "/v1/chat/completions", JSON, chunks=[BODY[:9], BODY[9:10], BODY[10:]]),
    request("POST", "/any", body=b"\r\n0\r\n\r\n"),
    request("POST", "/any", chunks=[b"\r\n", b"0\r\n\r\n"]),
    request("POST", "/v1/audio/transcriptions", {"Content-Type": "multipart/form-data; boundary=b"}, MULTIPART),
    request("HEAD", "/head"),
    request("POST", "/empty", body=b""),
]


def test_T40_any_cut_of_any_requests_gives_the_same_at_the_node(tmp_path: Path) -> None:
    with Lasting(tmp_path) as lasting:

        async def scene(data: bytes, count: int, cuts: list[int]) -> list[tuple[Any, ...]]:
            lasting.node.forget()
            client = await lasting.running.client()
            for piece in pieces_of(data, cuts):
                client.send(piece)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            for number in range(count):
                answer = await client.answer(methods[number])
                assert answer.status == 200
            client.fin()
            return [
                (r.start, [h for h in r.headers if h[0].lower() not in VARIABLE], bytes(r.body), r.framing)
                for r in lasting.node.log
            ]

        methods: list[str] = []

        @settings(max_examples=EXAMPLES)
        @given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4), CUTS)
        def same(requests: list[bytes], cuts: list[int]) -> None:
            methods[:] = [data.partition(b" ")[0].decode() for data in requests]
            data = b"".join(requests)
            uncut = lasting.run(scene(data, len(requests), []))
            assert lasting.run(scene(data, len(requests), cuts)) == uncut

        same()


EVENTS = (
    b'data: {"model":"m","choices":[{"delta":{"content":"h\xc3\xa9"}}]}\n\n',
    b'data:{"model":"m","choices":[{"delta":{"content":"data: [DONE]"}}]}\r\n\r\n',
    b": comment\n\n",
    b'event: x\rdata: {"a":\rdata: 1}\r\r',
    b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11,"total_tokens":18}}\n\n',
    b"data: [DONE]\n\n",
)


def head_of(framing: str, length: int, content_type: bytes) -> bytes:
    line = b"Content-Length: %d\r\n" % length if framing == "length" else b""
    if framing == "chunked":
        line = b"Transfer-Encoding: chunked\r\n"
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n%b\r\n" % (content_type, line)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, str, bytes]:
    """(bytes of the answer, framing, bytes of the body)"""
    events = draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=6))
    body = b"".join(events)
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    coded = body
    if framing == "chunked":
        coded = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces_of(body, draw(CUTS))) + b"0\r\n\r\n"
    return head_of(framing, len(body), b"text/event-stream") + coded, framing, body


def test_T40_any_cut_of_any_answer_gives_the_same_at_the_client(tmp_path: Path) -> None:
    with Lasting(tmp_path, aliases={"other": "m"}) as lasting:

        async def scene(answer: bytes, framing: str, cuts: list[int], model: str) -> tuple[Any, ...]:
            async def script(received: Received) -> None:
                await received.whole()
                for piece in pieces_of(answer, cuts):
                    received.send(piece)
                    await asyncio.sleep(0)
                if framing == "close":
                    received.peer.fin()

            lasting.node.script = script
            got = await lasting.running.ask(post_chat(model, stream=True))
            assert got.complete
            await eventually(lambda: not lasting.running.exchanges)
            cell = lasting.running.gateway.counters.cells["default", "n1"]
            tokens = (cell.prompt_tokens, cell.completion_tokens)
            cell.prompt_tokens = cell.completion_tokens = 0
            # The node decides how the body is cut into chunks, not what is in it.
            return got.start, [h for h in got.headers if h[0].lower() not in CHANGING], bytes(got.body), tokens

        @settings(max_examples=EXAMPLES)
        @given(streams(), CUTS)
        def same(stream: tuple[bytes, str, bytes], cuts: list[int]) -> None:
            answer, framing, body = stream
            for model in ("m", "other"):
                uncut = lasting.run(scene(answer, framing, [], model))
                assert lasting.run(scene(answer, framing, cuts, model)) == uncut
                assert uncut[2] == body.replace(b'"model":"m"', b'"model":"%b"' % model.encode())

        same()


CHANGING = ("x-request-id", "x-steelyard-reason")


def test_T40_any_cut_of_a_plain_answer_gives_the_same_at_the_client(tmp_path: Path) -> None:
    with Lasting(tmp_path) as lasting:

        async def scene(answer: bytes, close: bool, cuts: list[int], version: str, method: str) -> tuple[Any, ...]:
            async def script(received: Received) -> None:
                await received.whole()
                for piece in pieces_of(answer, cuts):
                    received.send(piece)
                    await asyncio.sleep(0)
                if close:
                    received.peer.fin()

            lasting.node.script = script
            client = await lasting.running.client()
            got = await client.ask(request(method, "/x", version=version))
            assert got.complete
            client.fin()
            return got.start, [h for h in got.headers if h[0].lower() not in CHANGING], bytes(got.body), got.framing

        interim = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"

        @settings(max_examples=EXAMPLES)
        @given(st.binary(max_size=300), st.sampled_from(["length", "chunked", "close"]), CUTS, CUTS, st.data())
        def same(body: bytes, framing: str, chunks: list[int], cuts: list[int], data: st.DataObject) -> None:
            version = data.draw(st.sampled_from(["1.1", "1.0"]))
            method = data.draw(st.sampled_from(["GET", "HEAD"]))
            before = data.draw(st.sampled_from([b"", interim, interim * 2]))
            coded = body
            if framing == "chunked":
                coded = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces_of(body, chunks)) + b"0\r\n\r\n"
            if method == "HEAD":
                coded = b""
            answer = before + head_of(framing, len(body), b"application/octet-stream") + coded
            close = framing == "close"
            uncut = lasting.run(scene(answer, close, [], version, method))
            assert lasting.run(scene(answer, close, cuts, version, method)) == uncut
            assert uncut[2] == (b"" if method == "HEAD" else body)

        same()
