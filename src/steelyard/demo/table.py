"""The table of the demo, for wide, narrow, low and dumb terminals."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from steelyard.demo.board import Board, NodeRow

BAR = 5
"""Cells of a memory bar: a 24 GB card in steps of about 5 GB."""
LOW = 24
"""Lines of a terminal below which only the nodes are shown: both tables together take 23."""
NARROW = 60
"""Columns of a terminal below which only the nodes' memory, work and errors are shown."""
STATE_STYLES = {"ready": "green", "down": "bold red", "draining": "yellow"}

Column = tuple[str, bool, Callable[[NodeRow], RenderableType]]
"""Heading, whether it is a number, and its cell."""


def view(board: Board, now: float, left: float, width: int, height: int) -> RenderableType:
    """Everything at a moment. `left`: seconds of load that are still to come; `width` and `height`: of the terminal."""
    headline = Text.assemble(
        ("Steelyard demo", "bold"),
        f"  {board.all.requests:,} requests, ",
        (f"{board.all.failures} failed", "bold red" if board.all.failures else "green"),
        f", {board.tokens_per_second(now):,.0f} tokens/s, {left:.0f} s to go",
    )
    if height < LOW or width < NARROW:
        return Group(headline, _nodes(board, now, width))
    return Group(headline, _nodes(board, now, width), _kinds(board, now))


def line(board: Board, now: float) -> str:
    """The same in one line, for a terminal that cannot move its cursor."""
    return (
        f"{now:5.1f} s  {board.all.requests} requests, {board.all.failures} failed, {board.in_flight} in flight, "
        f"{board.all.rate(now):.1f}/s, p50 {seconds(board.all.latency(now, 0.5))} s, "
        f"p99 {seconds(board.all.latency(now, 0.99))} s, {board.tokens_per_second(now):.0f} tokens/s"
    )


def plain() -> Table:
    """A table with a rule under its headings and nothing else, so that it fits 80 columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)


NAME: Column = ("node", False, lambda row: row.name)
ENGINE: Column = ("engine", False, lambda row: row.engine)
STATE: Column = ("state", False, lambda row: Text(row.state, style=STATE_STYLES.get(row.state, "yellow")))
MEMORY: Column = ("memory", False, lambda row: _memory(row))
MEMORY_BAR: Column = ("memory", False, lambda row: Text.assemble(_bar(row), " ", _memory(row)))
IN_FLIGHT: Column = ("in fl.", True, lambda row: str(row.in_flight))
RATE: Column = ("req/s", True, lambda row: f"{row.rate:.1f}")
P50: Column = ("p50 s", True, lambda row: seconds(row.p50))
P99: Column = ("p99 s", True, lambda row: seconds(row.p99))
FAILED: Column = ("failed", True, lambda row: _failures(row.failures))
COLUMNS: tuple[tuple[int, tuple[Column, ...]], ...] = (
    (80, (NAME, ENGINE, STATE, MEMORY_BAR, IN_FLIGHT, RATE, P50, P99, FAILED)),
    (NARROW, (NAME, MEMORY, IN_FLIGHT, RATE, P50, P99, FAILED)),
    (0, (NAME, MEMORY, IN_FLIGHT, FAILED)),
)
"""Columns of the terminal -> columns of the table that fit."""


def _nodes(board: Board, now: float, width: int) -> Table:
    columns = next(columns for least, columns in COLUMNS if width >= least)
    table = plain()
    for heading, is_number, _ in columns:
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    for row in board.rows(now):
        table.add_row(*(cell(row) for _, _, cell in columns))
    return table


def _share(row: NodeRow) -> float:
    """Of the card, or of the KV cache where the engine takes the card for itself."""
    return row.memory_used / row.memory_total if row.kv_usage is None else row.kv_usage


def _memory(row: NodeRow) -> Text:
    if row.kv_usage is not None:
        return Text(f"{row.kv_usage:>5.0%} KV")
    return Text(f"{row.memory_used / 1e9:2.0f}/{row.memory_total / 1e9:.0f} GB")


def _bar(row: NodeRow) -> Text:
    share = _share(row)
    full = min(BAR, math.ceil(share * BAR))
    style = "green" if share < 0.5 else "yellow" if share < 0.8 else "red"
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), "dim"))


def _kinds(board: Board, now: float) -> Table:
    table = plain()
    table.add_column("kind", no_wrap=True)
    for heading in ("requests", "req/s", "p50 s", "p99 s", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, window in (*board.kinds.items(), ("all", board.all)):
        table.add_row(
            kind,
            f"{window.requests:,}",
            f"{window.rate(now):.1f}",
            seconds(window.latency(now, 0.5)),
            seconds(window.latency(now, 0.99)),
            _failures(window.failures),
            style="bold" if kind == "all" else "",
        )
    return table


def _failures(count: int) -> Text:
    return Text(str(count), style="bold red" if count else "dim")


def seconds(value: float | None) -> str:
    """A time in seconds, to hundredths; a dash for what was not measured."""
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"
