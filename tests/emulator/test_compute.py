"""Processor sharing on a virtual clock: every number here can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.emulator.compute import SharedProcessor


def ends(processor: SharedProcessor, until: float) -> dict[object, float]:
    return {key: at for at, key in processor.advance(until)}


def test_one_job_takes_its_work() -> None:
    card = SharedProcessor()
    card.add(1.0, "a", 2.0)
    assert card.next_event() == 3.0
    assert card.advance(2.999) == []
    assert card.advance(3.0) == [(3.0, "a")]
    assert card.next_event() is None


def test_two_equal_jobs_slow_each_other_and_gain_fifteen_percent_together() -> None:
    card = SharedProcessor()
    card.add(0.0, "a", 2.0)
    card.add(0.0, "b", 2.0)
    done = ends(card, 10.0)
    assert done == {"a": pytest.approx(4 / 1.15), "b": pytest.approx(4 / 1.15)}


def test_an_arrival_slows_the_running_job_from_then_on() -> None:
    card = SharedProcessor()
    card.add(0.0, "long", 8.0)
    card.add(2.0, "short", 2.0)  # 6 s of "long" are left; both now run at 1.15 / 2
    done = ends(card, 100.0)
    short = 2.0 + 2.0 / 0.575
    assert done["short"] == pytest.approx(short)
    assert done["long"] == pytest.approx(short + 4.0)  # 2 s of its work were done meanwhile, then it is alone


def test_a_departure_gives_its_share_to_the_others() -> None:
    card = SharedProcessor()
    card.add(0.0, "a", 4.0)
    card.add(0.0, "b", 4.0)
    assert card.remaining(2.0, "a") == pytest.approx(4.0 - 2.0 * 0.575)
    assert card.remove(2.0, "b") is True
    assert card.remove(2.0, "b") is False
    assert ends(card, 100.0) == {"a": pytest.approx(2.0 + 4.0 - 1.15)}


def test_k_jobs_together_never_run_faster_than_the_gain() -> None:
    for count in (2, 3, 5, 20):
        card = SharedProcessor()
        for key in range(count):
            card.add(0.0, key, 1.0)
        assert card.next_event() == pytest.approx(count / 1.15)


def test_a_slower_card_applies_to_the_work_that_is_left() -> None:
    card = SharedProcessor(speed=2.0)
    card.add(0.0, "a", 4.0)
    card.set_speed(1.0, 0.5)  # 2 s are done, 2 s are left at half speed
    assert card.next_event() == pytest.approx(5.0)


def test_a_job_without_work_ends_at_once_and_a_job_is_added_once() -> None:
    card = SharedProcessor()
    card.add(1.0, "a", 0.0)
    assert card.advance(1.0) == [(1.0, "a")]
    card.add(1.0, "b", 1.0)
    with pytest.raises(ValueError, match="already computing"):
        card.add(1.0, "b", 1.0)
    with pytest.raises(ValueError, match="0 seconds or more"):
        card.add(1.0, "c", -1.0)


def test_busy_seconds_count_the_time_with_at_least_one_job() -> None:
    card = SharedProcessor()
    card.add(1.0, "a", 2.0)
    card.add(5.0, "b", 1.0)
    assert card.busy_seconds(4.0) == pytest.approx(2.0)
    assert card.busy_seconds(10.0) == pytest.approx(3.0)


def naive(jobs: list[tuple[float, float]], speed: float) -> list[float]:
    """The same law, job by job without any trick: all remaining works are reduced at every event."""
    left: dict[int, float] = {}
    done = [0.0] * len(jobs)
    arrivals = sorted(range(len(jobs)), key=lambda index: jobs[index][0])
    now = 0.0
    while arrivals or left:
        rate = speed * (1.0 if len(left) == 1 else 1.15) / max(1, len(left))
        soonest = min((now + work / rate for work in left.values()), default=float("inf"))
        arrival = jobs[arrivals[0]][0] if arrivals else float("inf")
        step = min(soonest, arrival)
        left = {index: work - (step - now) * rate for index, work in left.items()}
        now = step
        for index in [index for index, work in left.items() if work <= 1e-9]:
            done[index] = now
            del left[index]
        while arrivals and jobs[arrivals[0]][0] <= now:
            index = arrivals.pop(0)
            left[index] = jobs[index][1]
    return done


JOBS = st.lists(st.tuples(st.floats(0, 20), st.floats(0.01, 10)), min_size=1, max_size=12)


@given(JOBS, st.sampled_from([0.5, 1.0, 2.0]), st.lists(st.floats(0, 100), max_size=6))
def test_it_agrees_with_the_naive_simulation_whenever_it_is_asked(
    jobs: list[tuple[float, float]], speed: float, looks: list[float]
) -> None:
    card = SharedProcessor(speed=speed)
    done: dict[object, float] = {}
    events = sorted([(at, index) for index, (at, _) in enumerate(jobs)] + [(look, -1) for look in looks])
    for at, index in events:
        if index >= 0:
            card.add(at, index, jobs[index][1])
        else:
            done.update({key: end for end, key in card.advance(at)})
    done.update({key: end for end, key in card.advance(1e6)})
    assert done == {index: pytest.approx(end, abs=1e-6) for index, end in enumerate(naive(jobs, speed))}
