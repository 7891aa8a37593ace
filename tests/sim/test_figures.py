"""The arithmetic of the runner, on numbers that can be checked by head."""

from __future__ import annotations

import math

import pytest

from steelyard.sim.figures import (
    Latencies,
    NodeShare,
    Tally,
    duration,
    figures,
    jain,
    kind_figures,
    percentile,
    useful_share,
)
from steelyard.sim.load import Record


def record(
    kind: str = "a", due: float = 0.0, end: float | None = 1.0, outcome: str = "answered", error: str = ""
) -> Record:
    made = Record("x", kind, due)
    made.end, made.outcome, made.error = end, outcome, error
    return made


OOM = "CUDA out of memory. Tried to allocate 16.76 GiB."


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([7.0], 0.5, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1.0, 100),
        (list(range(1, 1001)), 0.99, 990),
        (list(range(1, 11)), 0.99, 10),
        (list(range(1, 11)), 0.0, 1),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], share: float, wanted: float) -> None:
    assert percentile(values, share) == wanted


def test_without_values_there_is_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(Latencies.of([]).mean)


def test_latencies_need_no_order() -> None:
    assert Latencies.of([3.0, 1.0, 2.0]) == (3, 2.0, 2.0, 3.0, 3.0)


def test_a_request_without_end_or_with_an_unknown_one_is_lost() -> None:
    records = [
        record(),
        record(outcome="error", error=OOM),
        record(outcome="error", error="no route"),
        record(outcome="lost", error="out of memory"),  # what broke is lost, whatever its text says
        record(outcome=""),
    ]
    tally = Tally.of(records)
    assert tally == (5, 1, 1, 1, 2)
    assert tally.oom_rate == pytest.approx(0.2)
    assert tally.error_rate == pytest.approx(0.8)
    assert math.isnan(Tally.of([]).oom_rate)


def test_latency_counts_from_when_a_request_was_due() -> None:
    late = record(due=2.0, end=12.0)
    late.sent = 9.0
    assert late.latency == 10.0


def test_useful_share_is_of_all_the_gpu_time_there_was() -> None:
    nodes = [NodeShare("a", 3, 3, 0, 6.0, 6.0), NodeShare("b", 1, 1, 0, 2.0, 4.0)]
    assert useful_share(nodes, 8.0) == pytest.approx(0.5)
    assert math.isnan(useful_share(nodes, 0.0))


def test_jain() -> None:
    assert jain([4.0, 4.0, 4.0]) == pytest.approx(1.0)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert math.isnan(jain([0.0, 0.0]))


def test_figures_of_a_scene() -> None:
    records = [
        record("small", 0.0, 2.0),
        record("small", 1.0, 4.0),
        record("large", 2.0, 10.0),
        record("large", 3.0, 3.3, "error", OOM),
    ]
    made = figures(records, [NodeShare("a", 4, 3, 1, 12.0, 12.0), NodeShare("b", 0, 0, 0, 0.0, 0.0)])
    assert duration(records) == 10.0
    assert (made["requests"], made["answered"], made["oom"], made["lost"]) == (4, 3, 1, 0)
    assert made["oom_rate"] == 0.25
    assert made["latency_mean"] == pytest.approx(13 / 3)  # errors say nothing about service
    assert made["useful_gpu_share"] == pytest.approx(12.0 / 20.0)
    kinds = kind_figures(records)
    assert list(kinds) == ["small", "large"]
    assert kinds["large"]["oom_rate"] == 0.5
    assert kinds["large"]["latency_p50"] == 8.0
