"""What must hold after every run, whatever was measured: nothing is lost, nothing is left over."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from steelyard.emulator import EmulatedFleet
from steelyard.sim.figures import Latencies, Tally
from steelyard.sim.gateway_process import GatewayProcess
from steelyard.sim.load import Record

SETTLE_SECONDS = 10.0
"""Real time in which leases and nodes must come to rest after the last answer; it takes milliseconds."""
POLL_SECONDS = 0.05
DISTORTION_LIMIT = 0.10
"""Share of the mean latency that may come from anything but the emulated cards. Jobs that seem a tenth longer move an
error rate by at most a tenth of itself; beyond, time runs too quickly for this machine, and the machine is measured."""


class Check(NamedTuple):
    """One thing that must hold."""

    name: str
    holds: bool
    detail: str


def every_request_ended(planned: int, records: Sequence[Record]) -> list[Check]:
    """Sent = answered + explicit errors; lost is none."""
    tally = Tally.of(records)
    explicit = tally.oom + tally.errors
    lost = [record for record in records if record.outcome not in ("answered", "error")]
    example = f"; first: {lost[0].id}: {lost[0].error or 'no end'}" if lost else ""
    return [
        Check("all of the trace was sent", len(records) == planned, f"{len(records)} of {planned}"),
        Check(
            "sent = answered + explicit errors",
            tally.requests == tally.answered + explicit and not lost,
            f"{tally.requests} = {tally.answered} + {explicit}, lost {len(lost)}{example}",
        ),
    ]


def nodes_agree(records: Sequence[Record], fleet: EmulatedFleet) -> Check:
    """Every good answer was computed once, and no memory error was made up. (A retried error is seen by nodes only.)"""
    tally = Tally.of(records)
    finished = sum(node.stats.finished for node in fleet.nodes)
    oom = sum(node.stats.oom for node in fleet.nodes)
    return Check(
        "clients and nodes agree",
        tally.answered == finished and tally.oom <= oom,
        f"answered {tally.answered}, finished by nodes {finished}; out of memory {tally.oom}, by nodes {oom}",
    )


async def at_rest(gateway: GatewayProcess, fleet: EmulatedFleet) -> list[Check]:
    """Leases zero, nobody queued, and no work or memory left on the nodes; waits a moment for them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        checks = [*_gateway_at_rest((await gateway.ask("/api/nodes"))["nodes"], await gateway.ask("/api/queue"))]
        checks.append(_fleet_at_rest(fleet))
        if all(check.holds for check in checks) or time.monotonic() > deadline:
            return checks
        await asyncio.sleep(POLL_SECONDS)


def _gateway_at_rest(nodes: Sequence[dict[str, Any]], queue: dict[str, Any]) -> list[Check]:
    in_flight = sum(node["in_flight"] for node in nodes)
    memory = sum(node["reserved"]["memory"] for node in nodes)
    tokens = sum(node["reserved"]["kv_tokens"] for node in nodes)
    seconds = sum(node["reserved"]["seconds"] for node in nodes)
    rest = not in_flight and not memory and not tokens and math.isclose(seconds, 0.0, abs_tol=1e-6)
    return [
        Check("leases are zero", rest, f"{in_flight} leases, {memory} bytes, {tokens} tokens, {seconds:g} s reserved"),
        Check("nobody waits", queue["length"] == 0, f"{queue['length']} in the queue"),
    ]


def _fleet_at_rest(fleet: EmulatedFleet) -> Check:
    open_requests = sum(node.stats.open for node in fleet.nodes)
    held = sum(node.engine.card.allocated - node.engine.card.resident for node in fleet.nodes)
    return Check("nodes are idle", not open_requests and not held, f"{open_requests} requests, {held} bytes held")


def ended_gracefully(exit_code: int) -> Check:
    """The gateway drained and had nothing to cut."""
    return Check("the gateway ended gracefully", exit_code == 0, f"exit code {exit_code}")


def distortions(records: Sequence[Record], fleet: EmulatedFleet) -> list[float]:
    """Of each good answer, the part of its latency that was not spent on the emulated card, in the clock's seconds.

    It is what the gateway, the sockets, this process and late timers add.
    """
    on_card: dict[str, float] = {}
    for node in fleet.nodes:
        for execution in node.stats.log:
            if execution.outcome == "finished" and execution.computed_at is not None:
                on_card[execution.request_id] = execution.computed_at - execution.arrived_at
    return [
        record.latency - on_card[record.id]
        for record in records
        if record.outcome == "answered" and record.id in on_card
    ]


def undistorted(added: Sequence[float], latencies: Latencies, time_scale: float) -> Check:
    """Time does not run too quickly for what the machine adds."""
    those = Latencies.of(added)
    share = those.mean / latencies.mean if added else math.nan
    milliseconds = 1000 * time_scale
    return Check(
        "the time scale suits the machine",
        share <= DISTORTION_LIMIT,
        f"gateway, sockets and timers add {those.mean * milliseconds:.1f} ms (p99 {those.p99 * milliseconds:.1f} ms), "
        f"{share:.1%} of the mean latency; the limit is {DISTORTION_LIMIT:.0%}"
        + ("" if share <= DISTORTION_LIMIT else "; a larger --time-scale or a quieter machine helps"),
    )
