"""The runner: one trace, the real gateway, emulated nodes, all over sockets of the loopback interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from steelyard.emulator import EmulatedFleet
from steelyard.sim import audit
from steelyard.sim.audit import Check
from steelyard.sim.figures import Latencies, NodeShare, figures, kind_figures, latencies_of
from steelyard.sim.gateway_process import GatewayProcess
from steelyard.sim.http_client import HttpClient
from steelyard.sim.load import Load, Record
from steelyard.sim.scenario import Expectation, Leg, Scenario, Stage
from steelyard.sim.traces import Arrival, offered_load

OVERTIME = 3.0
"""A leg may last this many times the trace before it is ended, plus OVERTIME_SECONDS of emulated time."""
OVERTIME_SECONDS = 600.0

Progress = Callable[[str, Record], object]
"""(leg, record): a request of that leg has ended."""


@dataclass
class LegResult:
    """What one leg gave."""

    name: str
    title: str
    figures: dict[str, Any]
    kinds: dict[str, dict[str, Any]]
    nodes: list[NodeShare]
    added: Latencies
    """Real seconds of each answer that were not the emulated card's."""
    audit: list[Check]
    wall_seconds: float


@dataclass
class Verdict:
    """An expectation and what was measured."""

    expectation: Expectation
    value: float

    @property
    def holds(self) -> bool:
        return self.expectation.holds(self.value)


@dataclass
class ScenarioResult:
    """What a scenario gave."""

    scenario: Scenario
    seed: int
    short: bool
    time_scale: float
    requests: int
    offered_load: float
    mix: dict[str, float]
    """Kind -> share of the requests."""
    legs: list[LegResult] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether everything that was expected came out, and nothing was lost."""
        return all(verdict.holds for verdict in self.verdicts) and all(
            check.holds for leg in self.legs for check in leg.audit
        )


async def play(
    scenario: Scenario,
    directory: Path,
    *,
    seed: int | None = None,
    short: bool = False,
    time_scale: float | None = None,
    requests: int | None = None,
    progress: Progress = lambda leg, record: None,
) -> ScenarioResult:
    """Play all legs of a scenario on the same trace. What the gateways write is left in `directory`.

    What is None is the scenario's own. Raises GatewayError and EmulatorError.
    """
    seed = scenario.seed if seed is None else seed
    if time_scale is None:
        time_scale = scenario.time_scale_short if short else scenario.time_scale
    if requests is None:
        requests = scenario.requests_short if short else scenario.requests
    trace = scenario.make_trace(seed, requests)
    result = ScenarioResult(
        scenario, seed, short, time_scale, len(trace), offered_load(trace, scenario.capacity), mix_of(trace)
    )
    for name, leg in scenario.legs.items():
        ended = partial(progress, name)
        result.legs.append(await play_leg(scenario, name, leg, trace, directory / name, seed, time_scale, ended))
    result.verdicts = judge(scenario.expectations, {leg.name: leg.figures for leg in result.legs})
    return result


async def play_leg(
    scenario: Scenario,
    name: str,
    leg: Leg,
    trace: Sequence[Arrival],
    directory: Path,
    seed: int,
    time_scale: float,
    ended: Callable[[Record], object],
) -> LegResult:
    """Play one leg, and audit it."""
    began = time.monotonic()
    async with EmulatedFleet(scenario.fleet, time_scale=time_scale, seed=seed) as fleet:
        stage = Stage([(node.name, node.url, node.profile) for node in fleet.nodes], time_scale)
        config = {**leg.config(stage), "listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
        async with GatewayProcess(config, directory) as gateway:
            await gateway.wait_for_nodes(len(fleet.nodes))
            client = HttpClient("127.0.0.1", gateway.port, fleet.clock.now)
            load = Load(client, fleet.clock, trace, name=f"{scenario.name}-{name}", ended=ended)
            limit = (OVERTIME * trace[-1].at + OVERTIME_SECONDS) * time_scale
            try:
                async with asyncio.timeout(limit):
                    await load.run()
            except TimeoutError:
                pass  # what is missing is found by the audit
            finally:
                await client.close()
            records = load.records
            checks = audit.every_request_ended(len(trace), records)
            checks.append(audit.nodes_agree(records, fleet))
            checks += await audit.at_rest(gateway, fleet)
            added = audit.distortions(records, fleet)
            checks.append(audit.undistorted(added, latencies_of(records), time_scale))
            checks.append(audit.ended_gracefully(await gateway.stop()))
        nodes = [
            NodeShare(
                node.name,
                node.stats.started,
                node.stats.finished,
                node.stats.oom,
                node.stats.useful_seconds,
                node.engine.busy_seconds(),
            )
            for node in fleet.nodes
        ]
    return LegResult(
        name,
        leg.title,
        figures(records, nodes),
        kind_figures(records),
        nodes,
        Latencies.of(value * time_scale for value in added),
        checks,
        time.monotonic() - began,
    )


def judge(expectations: Sequence[Expectation], measured: dict[str, dict[str, Any]]) -> list[Verdict]:
    """Each expectation beside what was measured. KeyError when a figure does not exist."""
    return [Verdict(expectation, measured[expectation.leg][expectation.figure]) for expectation in expectations]


def mix_of(trace: Sequence[Arrival]) -> dict[str, float]:
    """Kind -> share of the requests, as drawn."""
    counts: dict[str, int] = {}
    for arrival in trace:
        counts[arrival.kind] = counts.get(arrival.kind, 0) + 1
    return {kind: count / len(trace) for kind, count in sorted(counts.items())}
