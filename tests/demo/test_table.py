"""The table of the demo fits the terminal, and says what is."""

from __future__ import annotations

import asyncio
import io
import math

import pytest
from rich.console import Console

from steelyard.demo import table
from steelyard.demo.board import WINDOW_SECONDS, Board, Window
from steelyard.demo.fleet import FLEET
from steelyard.demo.traffic import KINDS
from steelyard.emulator import EmulatedFleet
from steelyard.sim.load import Record


def record(node: str, kind: str, end: float, latency: float = 0.5, outcome: str = "answered") -> Record:
    made = Record("x", kind, end - latency)
    made.node, made.end, made.outcome = node, end, outcome
    return made


def draw(width: int, height: int) -> str:
    """The screen after some requests."""

    async def main() -> str:
        async with EmulatedFleet(FLEET) as fleet:
            board = Board(fleet.nodes, KINDS)
            board.hear(
                [
                    {"name": node.name, "engine": node.profile.engine, "state": "ready", "in_flight": 3}
                    for node in fleet.nodes
                ]
            )
            board.take(record("sd-1", "image 512x512", 4.0))
            board.take(record("sd-2", "image 1024x1024", 5.0, 2.25))
            board.take(record("sd-2", "image 512x512", 5.0, outcome="error"))
            fleet.nodes[0].engine.card.allocate("job", 18_000_000_000)
            console = Console(width=width, height=height, file=io.StringIO(), record=True)
            console.print(table.view(board, 6.0, 4.0, width, height))
            return console.export_text()

    return asyncio.run(main())


@pytest.mark.parametrize("width", [200, 100, 80, 79, 60, 59, 40])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    text = draw(width, 40)
    assert "…" not in text
    for node in FLEET:
        assert node.name in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(("height", "kinds"), [(40, True), (24, True), (23, False), (16, False)])
def test_it_fits_the_height(height: int, kinds: bool) -> None:
    text = draw(80, height)
    assert len(text.splitlines()) < height
    assert ("transcription" in text) is kinds


def test_the_row_of_a_node() -> None:
    rows = {line.split()[0]: line.split() for line in draw(80, 40).splitlines() if line.strip()}
    assert rows["sd-1"] == ["sd-1", "sdwebui", "ready", "████░", "18/24", "GB", "3", "0.2", "0.50", "0.50", "0"]
    assert rows["sd-2"] == ["sd-2", "sdwebui", "ready", "░░░░░", "0/24", "GB", "3", "0.2", "2.25", "2.25", "1"]
    assert rows["llm-1"] == ["llm-1", "vllm", "ready", "░░░░░", "0%", "KV", "3", "0.0", "-", "-", "0"]
    assert rows["all"] == ["all", "3", "0.3", "0.50", "2.25", "1"]


def test_a_window_forgets() -> None:
    window = Window()
    window.add(record("a", "b", 1.0, 0.25))
    window.add(record("a", "b", 9.0, 0.75))
    assert window.rate(10.0) == pytest.approx(0.2)
    assert window.latency(10.0, 0.5) == 0.25
    assert window.latency(1.5 + WINDOW_SECONDS, 0.5) == 0.75
    assert math.isnan(window.latency(100.0, 0.5))
    assert window.rate(100.0) == 0.0
    assert window.requests == 2, "the sums stay"


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0.00"), (2.346, "2.35"), (math.nan, "-"), (None, "-")])
def test_times(value: float | None, shown: str) -> None:
    assert table.seconds(value) == shown
