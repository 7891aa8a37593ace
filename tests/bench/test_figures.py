"""Medians, percentiles, paired ratios and verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import How, Limit, Results, Sample, Verdict, percentile


def results(errors: int = 0, **rounds: list[float]) -> Results:
    """Samples of measure `m`, figure `f`: proxy name -> its value in round 0, 1, ..."""
    return Results(
        [
            Sample("m", proxy.replace("_", "-"), number, {"f": value}, errors)
            for proxy, values in rounds.items()
            for number, value in enumerate(values)
        ]
    )


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7], 0.5, 7),
        ([1, 2, 3, 4], 0.5, 2),
        ([4, 3, 2, 1], 0.75, 3),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1.0, 100),
        ([1, 2], 0.01, 1),
    ],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1], 0.0), ([1], 1.1), ([1], 50)])
def test_a_percentile_of_nothing_or_of_a_wrong_share_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"no values|share"):
        percentile(values, share)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_the_least_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_a_median_is_over_the_rounds_that_have_the_figure() -> None:
    taken = results(steelyard=[3.0, 1.0, 2.0])
    taken.add(Sample("m", "steelyard", 3, problem="did not answer"))
    assert taken.median("m", "steelyard", "f") == 2.0
    assert taken.median("m", "nginx", "f") is None


def test_a_ratio_is_paired_by_round() -> None:
    # The machine was twice as slow in round 1: the pairs all say 2, the medians of the sides would say 1.5.
    taken = results(steelyard=[20.0, 40.0, 30.0], nginx=[10.0, 20.0, 15.0])
    assert taken.ratio("m", "steelyard", "f", "nginx") == 2.0
    taken = results(steelyard=[20.0, 40.0], nginx=[10.0])
    assert taken.ratio("m", "steelyard", "f", "nginx") == 2.0


@pytest.mark.parametrize("nginx", [[], [0.0, 0.0], [-5.0, -1.0]])
def test_there_is_no_ratio_without_a_positive_baseline(nginx: list[float]) -> None:
    assert results(steelyard=[1.0, 2.0], nginx=nginx).ratio("m", "steelyard", "f", "nginx") is None


def test_a_difference_is_paired_by_round_too() -> None:
    taken = results(steelyard=[11.0, 31.0, 22.0], nginx=[10.0, 20.0, 20.0])
    assert taken.difference("m", "steelyard", "f", "nginx") == 2.0


RATIO = Limit("r", "m", "f", How.RATIO, must=3.0, goal=2.0, baseline="nginx")
ALONE = Limit("a", "m", "f", How.ALONE, must=16.0)
DIFFERENCE = Limit("d", "m", "f", How.DIFFERENCE, must=20.0, baseline="nginx")


@pytest.mark.parametrize(
    ("limit", "steelyard", "nginx", "verdict"),
    [
        (RATIO, [20.0], [10.0], Verdict.GOAL),
        (RATIO, [21.0], [10.0], Verdict.MUST),
        (RATIO, [30.0], [10.0], Verdict.MUST),
        (RATIO, [31.0], [10.0], Verdict.MISSED),
        (RATIO, [31.0], [], Verdict.NOT_MEASURED),
        (ALONE, [16.0], [], Verdict.MET),
        (ALONE, [16.1], [], Verdict.MISSED),
        (ALONE, [], [], Verdict.NOT_MEASURED),
        (DIFFERENCE, [29.0], [10.0], Verdict.MET),
        (DIFFERENCE, [31.0], [10.0], Verdict.MISSED),
        (DIFFERENCE, [5.0], [10.0], Verdict.MET),
    ],
)
def test_verdicts(limit: Limit, steelyard: list[float], nginx: list[float], verdict: Verdict) -> None:
    assert limit.verdict(results(steelyard=steelyard, nginx=nginx), "steelyard") is verdict


def test_a_limit_is_not_met_by_a_run_in_which_requests_failed() -> None:
    assert ALONE.verdict(results(errors=1, steelyard=[1.0]), "steelyard") is Verdict.MISSED


@pytest.mark.parametrize(
    ("batched", "cost", "verdict"),
    [
        (1.2, 12.0, Verdict.GOAL),
        (1.3, 12.0, Verdict.NOT_COMPARABLE),
        # Too dear although batching made it cheaper than it is: that can be said.
        (1.3, 20.0, Verdict.MISSED),
    ],
)
def test_units_handled_several_at_a_time_are_not_compared(batched: float, cost: float, verdict: Verdict) -> None:
    limit = Limit("b", "m", "f", How.RATIO, must=1.6, goal=1.3, baseline="nginx", batching="at_once")
    taken = Results(
        [
            Sample("m", "steelyard", 0, {"f": cost, "at_once": batched}),
            Sample("m", "nginx", 0, {"f": 10.0, "at_once": 1.0}),
        ]
    )
    assert limit.verdict(taken, "steelyard") is verdict
