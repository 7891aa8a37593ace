"""The report of a run: tables for people, JSON for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import measures
from bench.figures import LIMITS, Results, Verdict
from bench.proxies import BASELINE, PROXIES, SUBJECT
from bench.run import DIRECT


@dataclass(frozen=True)
class Column:
    """One figure of a measure as it is shown."""

    figure: str
    title: str
    scale: float = 1.0
    digits: int = 1
    ratio: bool = True


@dataclass(frozen=True)
class Section:
    """One measure as it is shown."""

    measure: str
    title: str
    columns: tuple[Column, ...]


SECTIONS = (
    Section(
        "plain",
        f"Plain requests: 1 KB chat in, 1 KB out, {measures.CONNECTIONS} connections",
        (
            Column("cpu_us", "CPU us a request"),
            Column("system_share", "of it in the kernel %", 100, 0, False),
            Column("answers_per_second", "requests/s", 1, 0, False),
        ),
    ),
    Section(
        "stream",
        f"SSE: {measures.STREAMS} streams, an event every {measures.STREAM_GAP_MS:g} ms",
        (
            Column("cpu_us", "CPU us an event"),
            Column("system_share", "of it in the kernel %", 100, 0, False),
            Column("events_per_second", "events/s", 1, 0, False),
            Column("events_per_read", "events a read", 1, 2, False),
        ),
    ),
    Section(
        "latency",
        f"Latency at {measures.LATENCY_RATE:,} requests/s, open loop",
        (
            Column("p50_us", "p50 us", 1, 0, False),
            Column("p99_us", "p99 us", 1, 0, False),
            Column("added_p50_us", "added p50 us", 1, 0),
            Column("added_p99_us", "added p99 us", 1, 0),
        ),
    ),
    Section(
        "idle",
        "Idle streams: one event, then silence",
        (
            Column("stream_bytes", "resident bytes a stream", 1, 0),
            Column("streams", "streams", 1, 0, False),
            Column("resident_after_mib", "resident MiB in all", 1, 1, False),
        ),
    ),
    Section(
        "bodies",
        f"Stalls: gaps beyond {measures.WATCH_GAP_MS:g} ms in streams while 16 MiB bodies pass",
        (
            Column("longest_ms", "longest ms", 1, 1),
            Column("p99_ms", "p99 ms", 1, 1, False),
            Column("bodies", "bodies passed", 1, 0, False),
            Column("loop_lag_ms", "own loop lag ms", 1, 1, False),
        ),
    ),
    Section(
        "decision",
        "A decision of the core (admit: choose and reserve), us",
        (
            Column("us_8", "8 nodes", 1, 1, False),
            Column("us_64", "64 nodes", 1, 1, False),
            Column("us_1000", "1,000 nodes", 1, 1, False),
        ),
    ),
)


@dataclass
class Run:
    """Everything that a report needs to know of a run."""

    results: Results = field(default_factory=Results)
    versions: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Measure -> proxy -> configuration."""
    missing: dict[str, str] = field(default_factory=dict)
    """Proxy -> why it did not take part."""
    pace: measures.Pace = measures.FULL
    machine: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0


def machine_facts() -> dict[str, object]:
    """What the figures of this run depend on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_bytes": memory,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg(),
    }


def _number(value: float | None, column: Column) -> str:
    return "-" if value is None else f"{value * column.scale:,.{column.digits}f}"


def table(section: Section, results: Results, proxies: Sequence[str]) -> Table:
    """One measure: a row a proxy, the median of each figure, and the ratio to nginx beside those that have one."""
    drawn = Table(title=section.title, title_justify="left", title_style="bold")
    drawn.add_column("", no_wrap=True)
    for column in section.columns:
        drawn.add_column(column.title, justify="right")
        if column.ratio:
            drawn.add_column(f"/ {BASELINE}", justify="right", style="bold")
    drawn.add_column("errors", justify="right")
    for proxy in proxies:
        cells = []
        for column in section.columns:
            cells.append(_number(results.median(section.measure, proxy, column.figure), column))
            if column.ratio:
                ratio = results.ratio(section.measure, proxy, column.figure, BASELINE)
                cells.append("-" if ratio is None else f"{ratio:.2f}")
        if any(cell != "-" for cell in cells):
            drawn.add_row(proxy, *cells, f"{results.errors(section.measure, proxy):,}")
    return drawn


_STYLES = {
    Verdict.GOAL: "green",
    Verdict.MET: "green",
    Verdict.MUST: "yellow",
    Verdict.MISSED: "bold red",
    Verdict.NOT_COMPARABLE: "yellow",
    Verdict.NOT_MEASURED: "dim",
}


def limits_table(results: Results) -> Table:
    """The numbers that Steelyard is held to, and what became of them in this run."""
    drawn = Table(title="Limits (issue 2)", title_justify="left", title_style="bold")
    for title in ("", "goal", "must", "reached", ""):
        drawn.add_column(title, justify="right" if title else "left", no_wrap=True)
    for limit in LIMITS:
        verdict = limit.verdict(results, SUBJECT)
        value = limit.reached(results, SUBJECT)
        goal = "" if limit.goal is None else f"{limit.goal:g} {limit.unit}"
        reached = "-" if value is None else f"{value:,.{2 if limit.unit == 'x' else 1}f} {limit.unit}"
        state = Text(verdict.value, style=_STYLES[verdict])
        drawn.add_row(limit.title, goal, f"{limit.must:,g} {limit.unit}", reached, state)
    return drawn


def show(run: Run, console: Console) -> None:
    """Print everything."""
    proxies = [DIRECT, *PROXIES]
    results = run.results
    for section in SECTIONS:
        if any(sample.measure == section.measure and sample.figures for sample in results.samples):
            console.print(table(section, results, proxies))
    console.print(limits_table(results))
    for name, version in run.versions.items():
        console.print(f"{name} {version}: {PROXIES[name].settings}", highlight=False, soft_wrap=True)
    for name, reason in run.missing.items():
        console.print(f"{name}: {reason}", style="yellow", highlight=False, soft_wrap=True)
    seen: set[tuple[str, str, str]] = set()
    for sample in results.problems():
        key = (sample.measure, sample.proxy, str(sample.problem))
        if key not in seen:
            seen.add(key)
            text = f"{sample.proxy}, {sample.measure}, round {sample.round + 1}: {sample.problem}"
            console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{run.machine['cores']} cores, kernel {run.machine['kernel']}, Python {run.machine['python']}, "
        f"load average before {run.machine['load_average_before'][0]:.1f}; medians of "  # type: ignore[index]
        f"{run.pace.rounds} rounds (idle: {run.pace.idle_rounds}); {run.seconds:.0f} s in all. "
        "Absolute figures hold for this run only; ratios are paired by round.",
        highlight=False,
        soft_wrap=True,
    )


def document(run: Run) -> dict[str, object]:
    """The run as JSON: facts, configurations, every raw figure of every round, medians, ratios, verdicts."""
    results = run.results
    summary: dict[str, dict[str, dict[str, object]]] = {}
    for section in SECTIONS:
        for proxy in [DIRECT, *PROXIES]:
            figures = {
                f for s in results.samples if (s.measure, s.proxy) == (section.measure, proxy) for f in s.figures
            }
            if figures:
                summary.setdefault(section.measure, {})[proxy] = {
                    figure: {
                        "median": results.median(section.measure, proxy, figure),
                        "ratio_to_nginx": results.ratio(section.measure, proxy, figure, BASELINE),
                    }
                    for figure in sorted(figures)
                }
    return {
        "note": "absolute figures are valid for this run only",
        "machine": run.machine,
        "seconds": run.seconds,
        "pace": asdict(run.pace),
        "load": {
            "connections": measures.CONNECTIONS,
            "streams": measures.STREAMS,
            "stream_events": measures.STREAM_EVENTS,
            "stream_gap_ms": measures.STREAM_GAP_MS,
            "latency_requests_per_second": measures.LATENCY_RATE,
            "watch_streams": measures.WATCH_STREAMS,
            "watch_gap_ms": measures.WATCH_GAP_MS,
        },
        "versions": run.versions,
        "settings": {name: PROXIES[name].settings for name in run.versions},
        "configs": run.configs,
        "missing": run.missing,
        "limits": [
            {
                "title": limit.title,
                "goal": limit.goal,
                "must": limit.must,
                "unit": limit.unit,
                "reached": limit.reached(results, SUBJECT),
                "verdict": limit.verdict(results, SUBJECT).value,
            }
            for limit in LIMITS
        ],
        "summary": summary,
        "samples": [asdict(sample) for sample in results.samples],
    }


def write(run: Run, path: Path) -> None:
    """Write `document` to `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(document(run), indent=1) + "\n")
    draft.replace(path)


def kept(run: Run) -> bool:
    """Whether every limit is kept.

    One that was not measured, or not comparably, is not kept, unless what it is measured beside is a peer that this
    machine does not have.
    """
    for limit in LIMITS:
        verdict = limit.verdict(run.results, SUBJECT)
        if verdict is Verdict.NOT_MEASURED and limit.baseline in run.missing:
            continue
        if verdict not in (Verdict.GOAL, Verdict.MUST, Verdict.MET):
            return False
    return True
