"""What is measured, one function a measure: each takes one sample of one running proxy."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench import nodes, payloads, wrk
from bench.figures import percentile
from bench.load import ClosedLoop, GapMeter, IdleStreams, OpenLoop
from bench.processes import LOOPBACK, CpuMeter, Process, StartError, resident_bytes
from bench.proxies import REPOSITORY

CONNECTIONS = 64
# 64 streams of an event every 8 ms are 8,000 events a second: every proxy here is far below saturation. In
# saturation events come several at a time, and the cost of one can no longer be seen.
STREAMS = 64
STREAM_EVENTS = 100
STREAM_GAP_MS = 8.0
LATENCY_RATE = 1000
# Streams that watch for stalls, and their pace.
WATCH_STREAMS = 4
WATCH_GAP_MS = 5.0
# Streams that are opened and closed before resident memory is read for the first time, so that what a proxy
# sets up once is not charged to the streams.
IDLE_WARM_UP = 200
IDLE_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Pace:
    """How long and how often: the seconds of one sample of each measure, and the rounds."""

    rounds: int
    idle_rounds: int
    plain_seconds: float
    stream_seconds: float
    latency_seconds: float
    bodies_seconds: float
    idle_streams: int
    limit_seconds: float


FULL = Pace(5, 3, 3.0, 3.0, 3.0, 3.0, 8000, 690.0)
QUICK = Pace(2, 1, 1.0, 1.0, 1.0, 1.0, 1000, 75.0)


@dataclass(frozen=True)
class Subject:
    """What a sample is taken of. `process` is None for the back end itself, which is the zero of latencies."""

    name: str
    port: int
    admin: int
    process: Process | None
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


Figures = tuple[dict[str, float], int]


@dataclass(frozen=True)
class Measure:
    """One measure: its back ends, what every proxy must be set up for, and how a sample is taken.

    `fresh` starts a new proxy for every sample; `direct` takes a sample of the back end, too.
    """

    name: str
    nodes: Callable[[Path], AbstractContextManager[tuple[int, int]]]
    sample: Callable[[Subject, Pace], Awaitable[Figures]]
    streaming: bool = False
    fresh: bool = False
    direct: bool = False


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """No pause of our own garbage collector inside a sample."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def plain(subject: Subject, pace: Pace) -> Figures:
    """CPU of a 1 KB chat request with a 1 KB answer, 64 connections, as fast as they go."""
    meter = CpuMeter(subject.pid)
    program = wrk.find()
    if program is not None:
        done = await wrk.run(program, subject.port, pace.plain_seconds, CONNECTIONS, subject.folder)
        answers, errors, seconds = done.answers, done.errors, done.seconds
    else:
        request = payloads.http_request(subject.port, payloads.chat_body())
        load = ClosedLoop(subject.port, request, CONNECTIONS)
        with _without_collector():
            await load.start()
            await asyncio.sleep(pace.plain_seconds)
            await load.stop()
        answers, errors, seconds = load.answers, load.errors, pace.plain_seconds
    used = meter.seconds()
    if not answers:
        raise StartError(f"{subject.name} answered nothing ({errors} errors)")
    figures = {
        "cpu_us": used / answers * 1e6,
        "answers_per_second": answers / seconds,
        "system_share": meter.system_share(),
    }
    return figures, errors


async def stream(subject: Subject, pace: Pace) -> Figures:
    """CPU of one SSE event; the requests that open the streams (one in 100 events) are in it."""
    request = payloads.http_request(subject.port, payloads.chat_body(stream=True))
    load = ClosedLoop(subject.port, request, STREAMS)
    with _without_collector():
        try:
            await load.start()
            await asyncio.sleep(0.5)
            meter, events, reads = CpuMeter(subject.pid), load.events, load.reads
            await asyncio.sleep(pace.stream_seconds)
            used = meter.seconds()
            events, reads = load.events - events, load.reads - reads
        finally:
            await load.stop()
    if not events:
        raise StartError(f"{subject.name} relayed no event ({load.errors} errors)")
    figures = {
        "cpu_us": used / events * 1e6,
        "events_per_second": events / pace.stream_seconds,
        "events_per_read": events / reads,
        "system_share": meter.system_share(),
    }
    return figures, load.errors


async def latency(subject: Subject, pace: Pace) -> Figures:
    """Latency of the plain request at 1,000 requests a second, open loop."""
    request = payloads.http_request(subject.port, payloads.chat_body())
    load = OpenLoop(subject.port, request, LATENCY_RATE)
    with _without_collector():
        await load.run(pace.latency_seconds)
    if not load.latencies:
        raise StartError(f"{subject.name} answered nothing ({load.errors} errors)")
    figures = {
        "p50_us": percentile(load.latencies, 0.5) * 1e6,
        "p99_us": percentile(load.latencies, 0.99) * 1e6,
        "answers_per_second": len(load.latencies) / pace.latency_seconds,
        "sent_late_p99_us": percentile(load.lateness, 0.99) * 1e6,
    }
    return figures, load.errors


async def idle(subject: Subject, pace: Pace) -> Figures:
    """Resident bytes of a stream that had one event and is silent. The proxy must be freshly started."""
    request = payloads.http_request(subject.port, payloads.chat_body(stream=True))
    warm_up = IdleStreams(subject.port, request, IDLE_WARM_UP)
    await warm_up.start()
    await warm_up.stop()
    await asyncio.sleep(IDLE_SETTLE_SECONDS)
    before = resident_bytes(subject.pid)
    load = IdleStreams(subject.port, request, pace.idle_streams)
    try:
        await load.start()
        await asyncio.sleep(IDLE_SETTLE_SECONDS)
        after = resident_bytes(subject.pid)
    finally:
        await load.stop()
    if not load.started:
        raise StartError(f"{subject.name} began no stream ({load.errors} errors)")
    figures = {
        "stream_bytes": (after - before) / load.started,
        "streams": float(load.started),
        "resident_before_mib": before / 2**20,
        "resident_after_mib": after / 2**20,
    }
    return figures, load.errors


async def bodies(subject: Subject, pace: Pace) -> Figures:
    """The longest gap in streams of 5 ms pace while 16 MiB JSON bodies pass through the same proxy."""
    request = payloads.http_request(subject.port, payloads.chat_body(stream=True))
    watch = GapMeter(subject.port, request, WATCH_STREAMS)
    command = [sys.executable, "-m", "bench.body_sender", f"--port={subject.port}"]
    with _without_collector():
        try:
            await watch.start()
            await asyncio.sleep(0.5)
            with Process(f"bodies-{subject.name}", command, subject.folder, {"PYTHONPATH": str(REPOSITORY)}) as sender:
                await asyncio.sleep(0.5)
                watch.gaps.clear()
                await asyncio.sleep(pace.bodies_seconds)
                gaps = list(watch.gaps)
                sender.check()
                sender.stop()
                sent = json.loads(sender.last_words(1))
        finally:
            await watch.stop()
    if not gaps or not sent["bodies"]:
        said = sent["first_error"] or "no error"
        raise StartError(f"{len(gaps)} events and {sent['bodies']} bodies passed; {sent['errors']} errors: {said}")
    figures = {
        "longest_ms": (max(gaps) * 1000 - WATCH_GAP_MS),
        "p99_ms": (percentile(gaps, 0.99) * 1000 - WATCH_GAP_MS),
        "bodies": float(sent["bodies"]),
    }
    lag = _loop_lag(subject.admin)
    if lag is not None:
        figures["loop_lag_ms"] = lag * 1000
    return figures, watch.errors + sent["errors"]


def _loop_lag(admin: int) -> float | None:
    """The longest stall of its loop that the proxy itself has seen, in seconds, where it tells."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{admin}/metrics", timeout=2) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, ValueError):
        return None
    found = re.search(r"^steelyard_loop_lag_max_seconds(?:\{[^}]*\})? (\S+)", text, re.MULTILINE)
    return float(found[1]) if found else None


MEASURES = (
    Measure("plain", nodes.plain_nodes, plain),
    Measure(
        "stream",
        lambda folder: nodes.event_nodes(folder, events=STREAM_EVENTS, gap_ms=STREAM_GAP_MS),
        stream,
        streaming=True,
    ),
    Measure("latency", nodes.plain_nodes, latency, direct=True),
    Measure("idle", lambda folder: nodes.event_nodes(folder, hold=True), idle, streaming=True, fresh=True),
    Measure(
        "bodies",
        lambda folder: nodes.event_nodes(folder, events=1_000_000, gap_ms=WATCH_GAP_MS),
        bodies,
        streaming=True,
    ),
)
