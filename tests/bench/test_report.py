"""The order of a run, the table, the JSON document and the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.__main__ import main, pace_of, parser
from bench.figures import LIMITS, Results, Sample
from bench.run import order, subtract_direct


def run_of(steelyard: float = 55.0, missing: tuple[str, ...] = ()) -> report.Run:
    """A run in which Steelyard's CPU per request is `steelyard` us, nginx's 25, and every other limit is kept."""
    samples = []
    for number in range(3):
        figures: dict[tuple[str, str], dict[str, float]] = {
            ("plain", "steelyard"): {"cpu_us": steelyard + number, "system_share": 0.5},
            ("plain", "nginx"): {"cpu_us": 25.0 + number, "system_share": 0.7},
            ("plain", "vllm-router"): {"cpu_us": 500.0, "system_share": 0.3},
            ("stream", "steelyard"): {"cpu_us": 16.0},
            ("stream", "nginx"): {"cpu_us": 12.5},
            ("idle", "steelyard"): {"stream_bytes": 9000.0},
            ("decision", "steelyard"): {"us_8": 5.0, "us_64": 12.0, "us_1000": 15.0},
            ("bodies", "steelyard"): {"longest_ms": 8.0},
            ("bodies", "nginx"): {"longest_ms": 6.0},
        }
        samples += [
            Sample(measure, proxy, number, values)
            for (measure, proxy), values in figures.items()
            if proxy not in missing
        ]
    run = report.Run(Results(samples), {"nginx": "1.22.1"}, machine=report.machine_facts())
    run.missing = dict.fromkeys(missing, "not installed")
    return run


def shown(run: report.Run) -> str:
    out = io.StringIO()
    report.show(run, Console(file=out, width=130))
    return out.getvalue()


def test_rounds_alternate() -> None:
    assert [order("abc", number) for number in range(3)] == [list("abc"), list("cba"), list("abc")]


def test_an_added_latency_is_less_the_back_end_of_the_same_round() -> None:
    results = Results(
        [
            Sample("latency", "direct", 0, {"p50_us": 100.0, "p99_us": 300.0}),
            Sample("latency", "nginx", 0, {"p50_us": 250.0, "p99_us": 900.0}),
            Sample("latency", "nginx", 1, {"p50_us": 250.0, "p99_us": 900.0}),
        ]
    )
    subtract_direct(results, "latency")
    assert results.by_round("latency", "nginx", "added_p50_us") == {0: 150.0}
    assert results.by_round("latency", "nginx", "added_p99_us") == {0: 600.0}


def test_the_table_has_medians_ratios_and_verdicts() -> None:
    lines = shown(run_of()).splitlines()
    row = next(line for line in lines if line.startswith("│ steelyard"))
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["steelyard", "56.0", "2.15"]
    verdict = next(line for line in lines if "CPU per request, beside nginx" in line)
    assert "2.15 x" in verdict
    assert "must met, goal not" in verdict
    assert "Absolute figures hold for this run only" in lines[-1]


def test_problems_are_shown_once_and_in_full() -> None:
    run = run_of()
    for number in range(2):
        run.results.add(Sample("idle", "envoy", number, problem="does not answer: [warning] x"))
    assert shown(run).count("envoy, idle, round 1: does not answer: [warning] x") == 1


def test_the_document_has_every_round_and_every_limit() -> None:
    document = json.loads(json.dumps(report.document(run_of())))
    values = [
        s["figures"]["cpu_us"] for s in document["samples"] if (s["measure"], s["proxy"]) == ("plain", "steelyard")
    ]
    assert values == [55.0, 56.0, 57.0]
    assert document["summary"]["plain"]["steelyard"]["cpu_us"]["median"] == 56.0
    assert [limit["title"] for limit in document["limits"]] == [limit.title for limit in LIMITS]
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        (run_of(), True),
        (run_of(steelyard=90.0), False),
        (run_of(missing=("vllm-router",)), True),
        # Without nginx nothing can be said of most limits: that is no reason to fail, the peer is not there.
        (run_of(missing=("nginx",)), True),
        (report.Run(Results(), machine=report.machine_facts()), False),
    ],
)
def test_kept(run: report.Run, kept: bool) -> None:
    assert report.kept(run) is kept


def test_a_limit_that_was_not_measured_is_not_kept() -> None:
    run = run_of()
    run.results.samples = [sample for sample in run.results.samples if sample.measure != "idle"]
    assert not report.kept(run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "nginx,apache"], "no peer 'apache'; there are: envoy, haproxy, nginx"),
        (["--measures", "plane"], "no measure 'plane'; there are: bodies, decision, idle"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_idle_streams_fit_into_the_descriptors() -> None:
    options = parser().parse_args([])
    assert pace_of(options, 20_000).idle_streams == 8000
    assert pace_of(options, 4096).idle_streams == 1548
    quick = pace_of(parser().parse_args(["--quick", "--rounds", "1"]), 20_000)
    assert (quick.rounds, quick.idle_rounds, quick.idle_streams) == (1, 1, 1000)


def test_a_written_report_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    report.write(run_of(), target)
    assert json.loads(target.read_text())["limits"]
    assert list(tmp_path.iterdir()) == [target]
