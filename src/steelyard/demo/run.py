"""The life of the demo: fleet, gateway, load, look, audit, and then stay up for curious people."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from steelyard.demo import curls
from steelyard.demo.board import Board
from steelyard.demo.fleet import FLEET, TIME_SCALE, configuration
from steelyard.demo.traffic import KINDS, mixed_traffic
from steelyard.emulator import EmulatedFleet
from steelyard.emulator.clock import EmulatedClock
from steelyard.sim import audit
from steelyard.sim.audit import Check
from steelyard.sim.figures import Tally, by_kind, latencies_of
from steelyard.sim.gateway_process import GatewayAddressInUse, GatewayProcess
from steelyard.sim.http_client import HttpClient
from steelyard.sim.load import Load, Record

LOOK_SECONDS = 0.25
"""Between two looks at the fleet. Quicker is flicker."""
PORT_ATTEMPTS = 3
"""Somebody else may take a port between the look at it and the use of it; not thrice in a row."""
DRAIN_SECONDS = 60.0
"""For the answers that are under way when the load ends; the longest takes about 3 s."""


@dataclass
class Up:
    """The demo is up."""

    port: int
    admin_port: int
    seconds: float
    """How long it took."""
    access_log: Path


@dataclass
class Summary:
    """What a demo gave. Times are real seconds."""

    up: Up
    seconds: float
    records: list[Record]
    tokens: int
    checks: list[Check]
    once: bool
    """The gateway is down by now."""

    @property
    def holds(self) -> bool:
        """All requests were answered well, and nothing is left over."""
        tally = Tally.of(self.records)
        return tally.requests > 0 and tally.answered == tally.requests and all(check.holds for check in self.checks)

    def kinds(self) -> dict[str, dict[str, Any]]:
        """Figures of each kind of request, and of all."""
        return {kind: _figures(those) for kind, those in (*by_kind(self.records).items(), ("all", self.records))}

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "port": self.up.port,
            "admin_port": self.up.admin_port,
            "seconds_to_start": self.up.seconds,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.seconds,
            "kinds": self.kinds(),
            "audit": [check._asdict() for check in self.checks],
            **self._while_it_is_up(),
        }

    def _while_it_is_up(self) -> dict[str, Any]:
        """What can be looked at and tried, for as long as the demo stays up."""
        if self.once:
            return {}
        lines = curls.lines(self.up.port, self.up.admin_port)
        return {
            "access_log": str(self.up.access_log),
            "try": [{"what": what, "command": command} for what, command in lines],
        }


def _figures(records: list[Record]) -> dict[str, Any]:
    latencies = latencies_of(records)
    first = sorted(record.first_event - record.due for record in records if record.first_event is not None)
    tally = Tally.of(records)
    return {
        **tally._asdict(),
        "latency_p50": latencies.p50 if latencies.number else None,
        "latency_p99": latencies.p99 if latencies.number else None,
        "first_token_p50": first[len(first) // 2] if first else None,
    }


async def run(
    directory: Path,
    *,
    seconds: float,
    port: int,
    admin_port: int,
    seed: int,
    once: bool,
    up: Callable[[Up], object],
    look: Callable[[Board, float, float], object],
    summary: Callable[[Summary], Coroutine[Any, Any, None]],
) -> bool:
    """Run the demo; True when all was answered and the audit holds.

    `up` is told when everything runs, `look` gets the board, the time and what is left of the load a few times a
    second, and `summary` ends the demo when it returns. With `once` the gateway is stopped before, and its end is
    part of the audit. Raises GatewayError and EmulatorError.
    """
    began = time.monotonic()
    async with (
        EmulatedFleet(FLEET, time_scale=TIME_SCALE, seed=seed) as fleet,
        await _start_gateway(fleet, directory, port, admin_port) as gateway,
    ):
        await gateway.wait_for_nodes(len(fleet.nodes))
        started = Up(gateway.port, gateway.admin_port, time.monotonic() - began, gateway.access_log)
        up(started)
        board = Board(fleet.nodes, KINDS)
        load = await _drive(gateway, board, seconds, seed, look)
        checks = audit.every_request_ended(load.sent, load.records)
        checks.append(audit.nodes_agree(load.records, fleet))
        checks += await audit.at_rest(gateway, fleet)
        if once:
            checks.append(audit.ended_gracefully(await gateway.stop()))
        made = Summary(started, seconds, load.records, board.tokens, checks, once)
        await summary(made)
        return made.holds


async def _start_gateway(fleet: EmulatedFleet, directory: Path, port: int, admin_port: int) -> GatewayProcess:
    """A gateway on these ports, or on free ones where they are taken."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        config = configuration(fleet.nodes, port_or_free(port), port_or_free(admin_port))
        gateway = GatewayProcess(config, directory)
        try:
            await gateway.start()
        except GatewayAddressInUse:
            if attempt == PORT_ATTEMPTS:
                raise
        else:
            return gateway
    raise AssertionError("not reached")


async def _drive(
    gateway: GatewayProcess, board: Board, seconds: float, seed: int, look: Callable[[Board, float, float], object]
) -> Load:
    """Send the load for `seconds`, look meanwhile, and wait for the last answers."""
    clock = EmulatedClock(asyncio.get_running_loop())
    client = HttpClient("127.0.0.1", gateway.port, clock.now)
    load = Load(client, clock, mixed_traffic(Random(f"demo/{seed}")), name="demo", ended=board.take)
    running = asyncio.get_running_loop().create_task(load.run())
    try:
        while (left := seconds - (clock.now() - load.began)) > 0:
            board.hear((await gateway.ask("/api/nodes"))["nodes"])
            look(board, clock.now() - load.began, left)
            await asyncio.sleep(min(LOOK_SECONDS, left))
        load.stop()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await running
        except TimeoutError:
            pass  # what has no end is found by the audit
        look(board, clock.now() - load.began, 0.0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
    return load


def port_or_free(port: int) -> int:
    """The port when it can be had, else 0, which is a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
