"""The HTTP/1.1 server of the nodes, over raw sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from steelyard.emulator import NodeProfile
from tests.emulator.scenes import Raw, one_node, silent, until

CLASSIFY = b'{"text": "good"}'


def test_a_request_in_single_bytes_is_one_request(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="classify")) as (node, _):
            raw = await Raw.open(node)
            message = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(CLASSIFY), CLASSIFY)
            for index in range(len(message)):
                raw.send(message[index : index + 1])
                await asyncio.sleep(0)
            assert await raw.answer() == (200, b'{"label":"positive","version":"v1"}')
            assert node.stats.finished == 1
            raw.close()

    run(scene())


def test_chunked_bodies_and_keep_alive(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="classify")) as (node, _):
            raw = await Raw.open(node)
            for _ in range(3):
                raw.send(b"POST /classify HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
                raw.send(b'6\r\n{"text\r\n')
                raw.send(b'a;note=1\r\n": "good"}\r\n0\r\n\r\n')
                assert (await raw.answer())[0] == 200
            assert len(node.connections) == 1
            raw.close()
            await until(lambda: not node.connections, "the connection is forgotten")

    run_on_both(scene())


def test_pipelined_requests_are_answered_in_order(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="classify", version="v2")) as (node, _):
            raw = await Raw.open(node)
            texts = [b"good", b"bad", b"table"] * 20  # more than the connection holds at once
            for text in texts:
                raw.post("/classify", b'{"text": "%b"}' % text)
            labels = [(await raw.answer())[1] for _ in texts]
            assert [b"positive" in each for each in labels] == [text == b"good" for text in texts]
            assert [b"neutral" in each for each in labels] == [text == b"table" for text in texts]
            raw.close()

    run_on_both(scene())


def test_http_1_0_gets_an_unchunked_stream_and_the_end_of_the_connection(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="llm")) as (node, _):
            raw = await Raw.open(node)
            body = b'{"prompt": "hello", "max_tokens": 3, "stream": true}'
            raw.send(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            status, headers = await raw.head()
            assert (status, headers["connection"]) == (200, "close")
            assert "transfer-encoding" not in headers
            assert (await raw.rest()).endswith(b"data: [DONE]\n\n")
            raw.send(b"")

    run(scene())


def test_head_has_no_body_and_expect_is_answered(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="llm")) as (node, _):
            raw = await Raw.open(node)
            raw.send(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            status, headers = await raw.head()
            assert status == 200
            assert int(headers["content-length"]) > 10
            raw.send(b"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n")
            raw.send(b"content-length: 50\r\n\r\n")
            assert (await raw.head())[0] == 100
            raw.send(b'{"messages": [{"role": "user", "content": "1234"}]}'.ljust(50)[:50])
            status, body = await raw.answer()
            assert status == 400  # cut at 50 bytes it is no JSON: the node says so and stays up
            assert b"not valid JSON" in body
            raw.close()

    run(scene())


def test_what_is_not_http_gets_400_and_the_end(run_on_both: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="llm")) as (node, client):
            raw = await Raw.open(node)
            raw.send(b"\x16\x03\x01 this is TLS\r\n\r\n")
            assert (await raw.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert (await client.get("/health")).status_code == 200

    run_on_both(scene())


def test_a_body_above_64_mib_gets_413(run: Any) -> None:
    async def scene() -> None:
        async with one_node(NodeProfile(kind="classify")) as (node, _):
            raw = await Raw.open(node)
            raw.send(b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-length: 80000000\r\n\r\n")
            head = asyncio.ensure_future(raw.head())
            piece = bytes(1 << 20)
            for _ in range(70):
                if head.done():
                    break
                raw.send(piece)
                await asyncio.wait([head], timeout=0.01)
            assert (await head)[0] == 413
            assert node.stats.started == 0
            raw.close()

    run(scene())


def test_unknown_paths_and_methods_are_refused_in_the_shape_of_the_engine(run: Any) -> None:
    async def scene() -> None:
        cases = {
            "llm": {"detail": "Not Found"},
            "classify": {"error": "Not Found"},
            "sd": {"error": "HTTPException", "detail": "Not Found", "body": "", "errors": "Not Found"},
        }
        for kind, body in cases.items():
            async with one_node(NodeProfile(kind=kind)) as (node, client):  # type: ignore[arg-type]
                answer = await client.get("/nowhere")
                assert (answer.status_code, answer.json()) == (404, body)
                assert answer.headers["x-emulated-node"] == "gpu-1"
                assert (await client.get(next(iter(node.engine.work)))).status_code == 405
                assert node.stats.started == 0

    run(scene())


def test_a_thousand_streams_stay_open_side_by_side(run_on_both: Any) -> None:
    async def scene() -> None:
        # Emulated time stands nearly still, so that every stream waits for its first token.
        async with one_node(NodeProfile(kind="llm"), time_scale=10_000) as (node, _):
            raws = [await Raw.open(node) for _ in range(1000)]
            for raw in raws:
                raw.post("/v1/completions", b'{"prompt": "hello", "max_tokens": 5, "stream": true}')
            for raw in raws:
                assert (await raw.head())[0] == 200
            assert node.stats.open == 1000
            assert node.engine.load()["running"] + node.engine.load()["waiting"] == 1000
            await silent(raws[-1].reader.read(1), 0.02)
            for raw in raws:
                raw.close()
            await until(lambda: node.stats.aborted == 1000, "every abort is seen")
            assert node.engine.load()["running"] + node.engine.load()["waiting"] == 0
            assert node.engine.load()["kv_usage"] == 0

    run_on_both(scene())
