"""The client that measures: what it makes of good, odd and broken answers."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from steelyard.sim.http_client import Answer, HttpClient, Request
from tests.sim.scripted import scripted, whole

GET = Request("GET", "/x")


async def one(data: list[bytes], *, close: bool = False, reset: bool = False, request: Request = GET) -> Answer:
    """The answer that a client makes of these pieces."""

    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        for piece in data:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        if reset:
            # No lingering: the socket is reset and not ended.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif close:
            writer.close()

    ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    async with scripted(script) as server:
        client = HttpClient("127.0.0.1", server.port, time.monotonic)
        client.send(request, ended.set_result)
        answer = await asyncio.wait_for(ended, 10)
        await client.close()
    return answer


@pytest.mark.parametrize(
    ("pieces", "close", "status", "body"),
    [
        ([whole(b"hello")], False, 200, b"hello"),
        ([whole(b"no", "503 Service Unavailable")], False, 503, b"no"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"0\r\n\r\n"], False, 200, b"abc"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"until the end"], True, 200, b"until the end"),
        ([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + whole(b"late")], False, 200, b"late"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False, 204, b""),
        ([bytes([byte]) for byte in whole(b"drop by drop")], False, 200, b"drop by drop"),
    ],
)
def test_whole_answers(pieces: list[bytes], close: bool, status: int, body: bytes) -> None:
    answer = asyncio.run(one(pieces, close=close))
    assert (answer.complete, answer.failure, answer.status, answer.body) == (True, "", status, body)
    assert answer.sent is not None
    assert answer.first_byte is not None
    assert answer.end is not None
    assert answer.sent <= answer.first_byte <= answer.end


@pytest.mark.parametrize(
    ("pieces", "reset", "failure"),
    [
        ([], False, "connection closed before an answer"),
        ([whole(b"12345")[:-2]], False, "connection closed within the answer"),
        (
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"],
            False,
            "connection closed within the answer",
        ),
        ([b"HTTP/1.1 200 OK\r\n\r\nunknown length"], True, "connection reset within the answer"),
        ([b"SMTP ready\r\n"], False, "not HTTP"),
    ],
)
def test_broken_answers_are_never_whole(pieces: list[bytes], reset: bool, failure: str) -> None:
    answer = asyncio.run(one(pieces, close=not reset, reset=reset))
    assert not answer.complete
    assert answer.failure.startswith(failure)


def test_a_stream_counts_its_events() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    event = b"9\r\ndata: 1\n\n\r\n"
    last = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    answer = asyncio.run(one([head, event, event, last], request=GET._replace(stream=True)))
    assert answer.complete
    assert answer.events is not None
    assert (answer.events.received, answer.events.ended) == (3, True)


def test_nobody_listens() -> None:
    async def main() -> Answer:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, but not listening: refused
            ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            client = HttpClient("127.0.0.1", taken.getsockname()[1], time.monotonic)
            client.send(GET, ended.set_result)
            answer = await asyncio.wait_for(ended, 10)
            await client.close()
            return answer

    answer = asyncio.run(main())
    assert not answer.complete
    assert answer.failure.startswith("cannot connect")


def test_connections_are_kept_and_reused() -> None:
    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"x"))

    async def main() -> None:
        async with scripted(script) as server:
            client = HttpClient("127.0.0.1", server.port, time.monotonic)
            for _ in range(5):
                assert (await client.fetch(GET, 10)).body == b"x"
            assert (server.connections, client.opened) == (1, 1)
            await asyncio.gather(*(client.fetch(GET, 10) for _ in range(4)))
            assert 1 < server.connections <= 4
            await client.close()
            assert client.unasked == 0

    asyncio.run(main())


def test_connection_close_is_obeyed() -> None:
    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"x", "200 OK", "connection: close"))
        writer.close()

    async def main() -> None:
        async with scripted(script) as server:
            client = HttpClient("127.0.0.1", server.port, time.monotonic)
            for _ in range(3):
                assert (await client.fetch(GET, 10)).complete
            assert server.connections == 3
            await client.close()

    asyncio.run(main())


def test_with_a_limit_requests_wait_and_none_is_lost() -> None:
    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.002)
        writer.write(whole(line.encode()))

    async def main() -> None:
        async with scripted(script) as server:
            client = HttpClient("127.0.0.1", server.port, time.monotonic, connections=2)
            answers = await asyncio.gather(*(client.fetch(Request("GET", f"/{n}"), 10) for n in range(20)))
            assert [answer.body.decode().split()[1] for answer in answers] == [f"/{n}" for n in range(20)]
            assert server.connections <= 2
            await client.close()

    asyncio.run(main())


def test_who_loses_patience_hangs_up() -> None:
    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)  # and says nothing

    async def main() -> None:
        async with scripted(script) as server:
            client = HttpClient("127.0.0.1", server.port, time.monotonic)
            with pytest.raises(OSError, match="no answer in time"):
                await client.fetch(GET, 0.05)
            for _ in range(200):
                if not server.open:
                    break
                await asyncio.sleep(0.01)
            assert server.open == 0, "the connection ended with it"
            await client.close()

    asyncio.run(main())


def test_closing_ends_what_is_open() -> None:
    async def script(line: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        async with scripted(script) as server:
            client = HttpClient("127.0.0.1", server.port, time.monotonic, connections=1)
            ended: list[Answer] = []
            for _ in range(3):
                client.send(GET, ended.append)
            await asyncio.sleep(0.05)
            await client.close()
            assert [answer.failure for answer in ended] == ["the client was closed"] * 3

    asyncio.run(main())


def test_requests_as_they_go_over_the_wire() -> None:
    request = Request("POST", "/a?b=c", (("content-type", "application/json"),), b"{}")
    assert request.encode("h:1") == (
        b"POST /a?b=c HTTP/1.1\r\nhost: h:1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert b"content-length" not in GET.encode("h:1")
