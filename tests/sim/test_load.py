"""The open loop: what is due is sent, and every request has exactly one end."""

from __future__ import annotations

import asyncio

import pytest

from steelyard.emulator.clock import EmulatedClock
from steelyard.sim.events import EventCounter
from steelyard.sim.http_client import Answer, HttpClient, Request
from steelyard.sim.load import ERROR_TEXT, Load, Record, read
from steelyard.sim.traces import Arrival
from tests.sim.scripted import Scripted, scripted, whole

GET = Request("GET", "/x")
STREAM = Request("GET", "/stream", stream=True)


def arrivals(*moments: float, request: Request = GET) -> list[Arrival]:
    return [Arrival(at, "a", request) for at in moments]


def answer(**changes: object) -> Answer:
    made = Answer(False, lambda answer: None)
    made.sent, made.first_byte, made.end, made.status, made.complete = 10.0, 11.0, 12.0, 200, True
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def events(stream: bytes) -> EventCounter:
    counter = EventCounter()
    counter.feed(stream, 11.5)
    return counter


@pytest.mark.parametrize(
    ("made", "outcome", "error"),
    [
        (answer(), "answered", ""),
        (answer(status=302), "answered", ""),
        (answer(status=404, body=b"no such model"), "error", "no such model"),
        (answer(status=500, body=b"x" * 999), "error", "x" * ERROR_TEXT),
        (
            answer(complete=False, failure="connection reset within the answer"),
            "lost",
            "connection reset within the answer",
        ),
        (answer(status=500, complete=False, failure="connection closed"), "lost", "connection closed"),
        (answer(events=events(b"data: 1\n\ndata: [DONE]\n\n")), "answered", ""),
        (answer(events=events(b"data: 1\n\n")), "lost", "the stream stopped without its end"),
        (answer(events=events(b'data: {"error": 1}\n\n')), "error", 'data: {"error": 1}'),
        (answer(events=events(b'data: {"error": 1}\n\n'), complete=False, failure="x"), "error", 'data: {"error": 1}'),
        (answer(events=events(b"data: 1\n\n"), complete=False, failure="cut"), "lost", "cut"),
        (answer(status=429, body=b"wait", events=events(b"")), "error", "wait"),
    ],
)
def test_how_an_answer_is_judged(made: Answer, outcome: str, error: str) -> None:
    record = Record("x", "a", 0.5)
    read(record, made, 10.0)
    assert (record.outcome, record.error) == (outcome, error)
    assert (record.sent, record.first_byte, record.end) == (0.0, 1.0, 2.0)
    assert record.latency == 1.5


async def play(server: Scripted, trace: list[Arrival], **options: float) -> Load:
    clock = EmulatedClock(asyncio.get_running_loop(), 0.1)
    client = HttpClient("127.0.0.1", server.port, clock.now)
    load = Load(client, clock, trace, **options)
    await asyncio.wait_for(load.run(), 20)
    await client.close()
    return load


async def hello(line: str, writer: asyncio.StreamWriter) -> None:
    writer.write(whole(b"hello", "200 OK", "x-steelyard-node: gpu-7"))


def test_every_arrival_becomes_one_request_and_one_record() -> None:
    async def main() -> None:
        async with scripted(hello) as server:
            load = await play(server, arrivals(0.0, 0.0, 0.5, 1.0))
            assert len(server.requests) == 4
            assert [record.outcome for record in load.records] == ["answered"] * 4
            assert [record.due for record in load.records] == [0.0, 0.0, 0.5, 1.0]
            assert len({record.id for record in load.records}) == 4
            assert {record.node for record in load.records} == {"gpu-7"}
            for record in load.records:
                assert record.sent is not None
                assert record.sent >= record.due, "nothing is sent before it is due"

    asyncio.run(main())


def test_an_empty_trace_is_over_at_once() -> None:
    async def main() -> None:
        async with scripted(hello) as server:
            assert (await play(server, [])).records == []

    asyncio.run(main())


def test_slow_answers_hold_nothing_back() -> None:
    """A closed loop would send the second request when the first is answered, which here is never."""
    everything_sent = asyncio.Event()

    async def only_when_all_have_come(line: str, writer: asyncio.StreamWriter) -> None:
        if len(server_seen[0].requests) == 3:
            everything_sent.set()
        await everything_sent.wait()
        await hello(line, writer)

    server_seen: list[Scripted] = []

    async def main() -> None:
        async with scripted(only_when_all_have_come) as server:
            server_seen.append(server)
            load = await play(server, arrivals(0.0, 0.2, 0.4))
            assert [record.outcome for record in load.records] == ["answered"] * 3
            assert load.records[0].latency >= 0.4, "the first waited for the last"

    asyncio.run(main())


def test_who_gets_no_answer_leaves_and_is_lost() -> None:
    async def silent(line: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        async with scripted(silent) as server:
            load = await play(server, arrivals(0.0), patience=0.5)
            (record,) = load.records
            assert (record.outcome, record.error) == ("lost", "no answer within 0.5 s")

    asyncio.run(main())


def test_a_stream_is_followed_to_its_end() -> None:
    async def stream(line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: 1\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(b"data: 2\n\ndata: [DONE]\n\n")
        writer.close()

    async def main() -> None:
        async with scripted(stream) as server:
            (record,) = (await play(server, arrivals(0.0, request=STREAM))).records
            assert (record.outcome, record.events) == ("answered", 3)
            assert record.first_event is not None
            assert record.last_event is not None
            assert record.first_event < record.last_event

    asyncio.run(main())


def test_stop_sends_nothing_more_and_waits_for_what_is_under_way() -> None:
    gate = asyncio.Event()

    async def gated(line: str, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await hello(line, writer)

    async def main() -> None:
        async with scripted(gated) as server:
            clock = EmulatedClock(asyncio.get_running_loop(), 0.1)
            client = HttpClient("127.0.0.1", server.port, clock.now)
            seen: list[Record] = []
            load = Load(client, clock, arrivals(0.0, 0.1, 1e6), ended=seen.append)
            running = asyncio.get_running_loop().create_task(load.run())
            while len(server.requests) < 2:
                await asyncio.sleep(0.005)
            load.stop()
            await asyncio.sleep(0.01)
            assert not running.done()
            gate.set()
            await asyncio.wait_for(running, 20)
            assert [record.outcome for record in seen] == ["answered", "answered"]
            await client.close()

    asyncio.run(main())


def test_a_load_that_is_cancelled_leaves_nothing_open() -> None:
    async def silent(line: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        async with scripted(silent) as server:
            clock = EmulatedClock(asyncio.get_running_loop(), 0.1)
            client = HttpClient("127.0.0.1", server.port, clock.now)
            load = Load(client, clock, arrivals(0.0, 0.0, 1e6))
            running = asyncio.get_running_loop().create_task(load.run())
            while len(server.requests) < 2:
                await asyncio.sleep(0.005)
            running.cancel()
            await asyncio.wait([running])
            assert [record.outcome for record in load.records] == ["lost", "lost"]
            await client.close()
            assert len(asyncio.all_tasks()) <= 4, "this test, and the server's three at most"

    asyncio.run(main())
