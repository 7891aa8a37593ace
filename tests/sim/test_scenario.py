"""What a trap may say of itself, and how it is judged and found."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from steelyard.config.units import parse_duration
from steelyard.sim import report
from steelyard.sim.audit import Check
from steelyard.sim.figures import Latencies, NodeShare, figures
from steelyard.sim.live import LegResult, ScenarioResult, judge, mix_of
from steelyard.sim.scenario import Expectation, Leg, Scenario, Stage
from steelyard.sim.scenarios import UnknownTrap, find, scenarios
from steelyard.sim.scenarios.uneven_weight import SCENARIO


@pytest.mark.parametrize(
    ("expectation", "value", "holds"),
    [
        (Expectation("before", "oom_rate", 0.1, 0.2), 0.1, True),
        (Expectation("before", "oom_rate", 0.1, 0.2), 0.2, True),
        (Expectation("before", "oom_rate", 0.1, 0.2), 0.21, False),
        (Expectation("before", "oom_rate", 0.1, 0.2), 0.09, False),
        (Expectation("before", "oom_rate", at_most=0.0), 0.0, True),
        (Expectation("before", "oom_rate", at_most=0.0), 1e-9, False),
        (Expectation("before", "oom_rate", at_least=1.4), 1.4, True),
        (Expectation("before", "oom_rate"), math.nan, False),
    ],
)
def test_an_expectation_holds_within_its_bounds(expectation: Expectation, value: float, holds: bool) -> None:
    (verdict,) = judge([expectation], {"before": {"oom_rate": value}})
    assert verdict.holds is holds


def test_a_figure_that_does_not_exist_is_a_mistake_of_the_scenario() -> None:
    with pytest.raises(KeyError, match="omm_rate"):
        judge([Expectation("before", "omm_rate", 0, 0)], {"before": {"oom_rate": 0.0}})


def test_an_expectation_of_a_leg_that_is_not_played_is_refused() -> None:
    with pytest.raises(ValueError, match="uneven-weight: an expectation of 'after'"):
        replace(SCENARIO, expectations=(Expectation("after", "oom", 0, 0),))


def test_the_legs_are_before_and_then_after() -> None:
    after = Leg("least-work", lambda stage: {})
    assert list(SCENARIO.legs) == ["before"]
    assert list(replace(SCENARIO, after=after).legs) == ["before", "after"]


def test_capacity_is_the_sum_of_the_speeds() -> None:
    slow = replace(SCENARIO.fleet[0], speed=0.5)
    assert replace(SCENARIO, fleet=(*SCENARIO.fleet, slow)).capacity == 8.5


def test_seconds_for_the_gateway_are_real_ones() -> None:
    assert parse_duration(Stage([], 0.1).real(30.0)) == pytest.approx(3.0)
    assert parse_duration(Stage([], 0.06).real(2.0)) == pytest.approx(0.12)


def test_the_mix_is_counted() -> None:
    mix = mix_of(SCENARIO.make_trace(1, 500))
    assert set(mix) == {"512x512", "1024x1024"}
    assert sum(mix.values()) == pytest.approx(1.0)


KNOWN: dict[str, Scenario] = {
    name: replace(SCENARIO, name=name) for name in ("uneven-weight", "long-tails", "lost-context", "long-weight")
}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("uneven-weight", "uneven-weight"),
        ("uneven_weight", "uneven-weight"),
        ("Uneven", "uneven-weight"),
        ("tails", "long-tails"),
    ],
)
def test_a_trap_is_found_by_name_or_by_a_part_that_only_it_has(asked: str, found: str) -> None:
    assert find(asked, KNOWN).name == found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("uneven-wieght", "did you mean uneven-weight?"),
        ("contxt", "did you mean lost-context?"),
        ("weight", "there are uneven-weight, long-tails"),  # two have it
        ("xyz", "there are uneven-weight, long-tails"),
        ("", "there are uneven-weight, long-tails"),
    ],
)
def test_an_unknown_trap_is_told_the_nearest(asked: str, said: str) -> None:
    with pytest.raises(UnknownTrap) as caught:
        find(asked, KNOWN)
    assert f"unknown trap {asked!r}" in str(caught.value)
    assert said in str(caught.value)
    assert ("did you mean" in str(caught.value)) is said.startswith("did you mean")


def test_every_file_of_the_room_is_a_trap() -> None:
    assert "uneven-weight" in scenarios()
    for name, scenario in scenarios().items():
        assert scenario.name == name
        assert scenario.make_trace(1, 10) == scenario.make_trace(1, 10)


def result(oom_rate: float, *, audit_holds: bool = True) -> ScenarioResult:
    figures = dict.fromkeys((name for name, _, _ in report.FIGURES), 1.0)
    figures |= {"oom_rate": oom_rate, "errors": 0, "latency_p99": math.nan, "seconds": 10.0}
    leg = LegResult(
        "before",
        "round-robin",
        figures,
        {},
        [NodeShare("gpu-1", 1, 1, 0, 2.0, 2.0)],
        Latencies.of([]),
        [Check("leases are zero", audit_holds, "1 lease")],
        1.0,
    )
    made = ScenarioResult(SCENARIO, 1, True, 0.1, 3, 0.5, {"512x512": 1.0}, [leg])
    made.verdicts = judge(SCENARIO.expectations, {"before": figures})
    return made


@pytest.mark.parametrize(
    ("made", "holds"), [(result(0.15), True), (result(0.3), False), (result(0.15, audit_holds=False), False)]
)
def test_the_report_says_whether_it_holds(made: ScenarioResult, holds: bool) -> None:
    assert made.holds is holds
    console = Console(width=80, record=True, file=io.StringIO())
    report.show(made, console)
    text = console.export_text()
    assert ("PASS" in text, "FAIL" in text, "✗" in text) == (holds, not holds, not holds)
    answer = json.loads(json.dumps(report.as_json(made), allow_nan=False))
    assert answer["holds"] is holds
    assert answer["legs"]["before"]["figures"]["latency_p99"] is None
    assert answer["expectations"][0]["value"] == made.verdicts[0].value


def test_the_document_names_figures_that_exist() -> None:
    text = (Path(__file__).parents[2] / "docs" / "traps.md").read_text()
    (paragraph,) = [part for part in text.split("\n- ") if part.startswith("`Expectation` names a figure")]
    named = set(re.findall(r"`([a-z0-9_]+)`", paragraph))
    assert named == set(figures([], []))
