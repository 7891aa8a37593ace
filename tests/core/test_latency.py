"""What a node's answers leave behind: the last sample, and Finagle's Peak EWMA."""

from __future__ import annotations

from math import exp

import pytest

from steelyard.core.latency import DECAY_SECONDS, Latency


def test_nothing_was_seen_yet() -> None:
    latency = Latency()
    assert latency.last is None
    assert latency.peak_ewma(100.0) == 0.0


def test_a_peak_counts_at_once() -> None:
    latency = Latency()
    latency.observe(0.1, 1.0)
    latency.observe(10.0, 1.1)
    assert latency.peak_ewma(1.1) == 10.0
    assert latency.last == 10.0


def test_better_samples_pull_the_average_down_slowly() -> None:
    latency = Latency()
    latency.observe(10.0, 0.0)
    latency.observe(1.0, DECAY_SECONDS)
    keep = exp(-1)
    assert latency.peak_ewma(DECAY_SECONDS) == pytest.approx(10.0 * keep + 1.0 * (1 - keep))
    assert latency.last == 1.0


def test_idle_time_forgives() -> None:
    latency = Latency()
    latency.observe(10.0, 0.0)
    assert latency.peak_ewma(DECAY_SECONDS) == pytest.approx(10.0 / exp(1))
    assert latency.peak_ewma(20 * DECAY_SECONDS) < 1e-6


def test_a_smaller_sample_of_the_same_instant_changes_nothing_and_a_clock_that_stands_back_does_no_harm() -> None:
    latency = Latency()
    latency.observe(10.0, 5.0)
    latency.observe(1.0, 5.0)
    assert latency.peak_ewma(5.0) == 10.0
    latency.observe(12.0, 4.0)
    assert latency.peak_ewma(4.0) == latency.peak_ewma(5.0) == 12.0


def test_slow_for_ten_answers_then_fast_for_ten_it_is_fast_again() -> None:  # T20
    latency = Latency()
    for second in range(10):
        latency.observe(5.0, float(second))
    for second in range(10, 60):
        latency.observe(0.1, float(second))
    assert latency.peak_ewma(60.0) < 0.2
