"""Traces: the same seed, the same trace; and as much load as they say."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from steelyard.sim.http_client import Request
from steelyard.sim.traces import Arrival, offered_load, poisson


def arrival(at: float, work: float) -> Arrival:
    return Arrival(at, "a", Request("GET", "/"), work)


def test_poisson_has_its_rate_and_exponential_gaps() -> None:
    moments = list(islice(poisson(Random(3), 5.0), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert variance == pytest.approx(mean**2, rel=0.06), "the spread of an exponential is its mean"
    assert all(gap >= 0 for gap in gaps)


def test_offered_load_is_work_seconds_over_capacity() -> None:
    trace = [arrival(1.0, 2.0), arrival(5.0, 8.0), arrival(10.0, 10.0)]
    assert offered_load(trace, 4.0) == pytest.approx(20.0 / 40.0)
    assert offered_load(trace, 1.0) == pytest.approx(2.0)


def test_a_trace_without_duration_has_no_load() -> None:
    with pytest.raises(ValueError, match="without duration"):
        offered_load([], 8.0)
