"""What a scene gave, for people (tables) and for machines (JSON)."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from steelyard.sim.audit import Check
from steelyard.sim.live import LegResult, ScenarioResult, Verdict

FIGURES: tuple[tuple[str, str, str], ...] = (
    ("requests", "requests", "count"),
    ("answered", "answered", "count"),
    ("oom", "out of memory", "count"),
    ("oom_rate", "out-of-memory rate", "share"),
    ("errors", "other errors", "count"),
    ("lost", "lost", "count"),
    ("latency_mean", "latency mean", "seconds"),
    ("latency_p50", "latency p50", "seconds"),
    ("latency_p99", "latency p99", "seconds"),
    ("useful_gpu_share", "useful of available GPU time", "share"),
    ("node_fairness", "fairness between nodes (Jain)", "index"),
)
"""Figure -> how it is called, and its unit, in the order of the table."""


def number(value: float, unit: str) -> str:
    """A figure with its unit; a dash for what was not measured."""
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "seconds":
        return f"{value:.2f} s"
    if unit == "index":
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def show(result: ScenarioResult, console: Console) -> None:
    """Print a result."""
    for part in parts(result):
        console.print(part)


def parts(result: ScenarioResult) -> list[RenderableType]:
    """The pieces of the report, from top to bottom."""
    scenario = result.scenario
    mix = ", ".join(f"{share:.0%} {kind}" for kind, share in result.mix.items())
    setting = (
        f"{result.requests:,} requests ({mix}), Poisson, offered load {result.offered_load:.2f}, seed {result.seed}, "
        f"time x{1 / result.time_scale:.3g}"
    )
    made: list[RenderableType] = [
        Text(scenario.title, style="bold"),
        Text(scenario.story),
        Text(setting, style="dim"),
        _figures_table(result.legs),
        _kinds_table(result.legs),
    ]
    made += [_nodes_table(leg) for leg in result.legs]
    made.append(_verdict_lines(result.verdicts))
    made += [_audit_lines(leg) for leg in result.legs]
    made.append(
        Text("PASS: everything that was expected came out", style="bold green")
        if result.holds
        else Text("FAIL: see the lines with a cross", style="bold red")
    )
    return made


def _figures_table(legs: list[LegResult]) -> Table:
    table = Table(title_justify="left")
    table.add_column("")
    for leg in legs:
        table.add_column(f"{leg.name}\n{leg.title}", justify="right")
    for name, title, unit in FIGURES:
        table.add_row(title, *(number(leg.figures[name], unit) for leg in legs))
    return table


def _kinds_table(legs: list[LegResult]) -> Table:
    table = Table()
    for heading in ("leg", "kind"):
        table.add_column(heading)
    for heading in ("requests", "out of memory", "mean", "p50", "p99"):
        table.add_column(heading, justify="right")
    for leg in legs:
        for kind, those in leg.kinds.items():
            table.add_row(
                leg.name,
                kind,
                number(those["requests"], "count"),
                number(those["oom_rate"], "share"),
                *(number(those[f"latency_{name}"], "seconds") for name in ("mean", "p50", "p99")),
            )
    return table


def _nodes_table(leg: LegResult) -> Table:
    table = Table()
    table.add_column(f"{leg.name}: node")
    for heading in ("requests", "out of memory", "useful", "busy"):
        table.add_column(heading, justify="right")
    seconds = leg.figures["seconds"]
    for node in leg.nodes:
        table.add_row(
            node.name,
            number(node.requests, "count"),
            number(node.oom, "count"),
            number(node.useful_seconds / seconds if seconds else math.nan, "share"),
            number(node.busy_seconds / seconds if seconds else math.nan, "share"),
        )
    return table


def _mark(holds: bool) -> tuple[str, str]:
    return ("✓ ", "green") if holds else ("✗ ", "bold red")


def _verdict_lines(verdicts: list[Verdict]) -> RenderableType:
    lines = [Text("Expected", style="bold")]
    units = {name: (title, unit) for name, title, unit in FIGURES}
    for verdict in verdicts:
        wanted = verdict.expectation
        title, unit = units.get(wanted.figure, (wanted.figure, "index"))
        lines.append(
            Text.assemble(
                _mark(verdict.holds),
                f"{wanted.leg}: {title} {number(verdict.value, unit)}, wanted {bounds(verdict, unit)}",
                (f" ({wanted.why})" if wanted.why else "", "dim"),
            )
        )
    return Group(*lines)


def bounds(verdict: Verdict, unit: str) -> str:
    """Where the figure must lie, in words."""
    low, high = verdict.expectation.at_least, verdict.expectation.at_most
    if low == high:
        return number(low, unit)
    if math.isinf(low):
        return f"at most {number(high, unit)}"
    if math.isinf(high):
        return f"at least {number(low, unit)}"
    return f"{number(low, unit)} to {number(high, unit)}"


def _audit_lines(leg: LegResult) -> RenderableType:
    def line(check: Check) -> Text:
        return Text.assemble(_mark(check.holds), check.name, (f": {check.detail}", "dim"))

    return Group(Text(f"Audit of {leg.name} ({leg.wall_seconds:.0f} s)", style="bold"), *map(line, leg.audit))


def as_json(result: ScenarioResult) -> dict[str, Any]:
    """The whole result. Seconds are those of the emulated nodes, unless the name says `wall` or `real`."""
    return {
        "scenario": result.scenario.name,
        "title": result.scenario.title,
        "seed": result.seed,
        "short": result.short,
        "time_scale": result.time_scale,
        "requests": result.requests,
        "offered_load": result.offered_load,
        "mix": result.mix,
        "legs": {leg.name: _leg_json(leg) for leg in result.legs},
        "expectations": [
            {
                "leg": verdict.expectation.leg,
                "figure": verdict.expectation.figure,
                "at_least": _finite(verdict.expectation.at_least),
                "at_most": _finite(verdict.expectation.at_most),
                "why": verdict.expectation.why,
                "value": _finite(verdict.value),
                "holds": verdict.holds,
            }
            for verdict in result.verdicts
        ],
        "holds": result.holds,
    }


def _leg_json(leg: LegResult) -> dict[str, Any]:
    return {
        "title": leg.title,
        "figures": {name: _finite(value) for name, value in leg.figures.items()},
        "kinds": {kind: {name: _finite(each) for name, each in those.items()} for kind, those in leg.kinds.items()},
        "nodes": [node._asdict() for node in leg.nodes],
        "added_real_seconds": {name: _finite(value) for name, value in leg.added._asdict().items()},
        "audit": [check._asdict() for check in leg.audit],
        "wall_seconds": leg.wall_seconds,
    }


def _finite(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None
