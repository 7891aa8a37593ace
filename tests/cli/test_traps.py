"""`steelyard traps` from outside."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.program import interrupt, running, steelyard, wait_for_children


@pytest.fixture(autouse=True)
def temporary_files_go_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["uneven-wieght", "--live"], "unknown trap 'uneven-wieght'; did you mean uneven-weight?"),
        (["xyz"], "unknown trap 'xyz'; there "),
        (["weight"], "the simulator comes in a later release; `steelyard traps --live` plays the traps"),
        ([], "the simulator comes in a later release"),
        (["--live", "--time-scale", "0"], "--time-scale must be above 0"),
        (["--live", "--time-scale", "nan"], "--time-scale must be above 0"),
        (["--live", "--time-scale", "11"], "at most 10, not 11"),
        (["--live", "--json", "nowhere/at/all.json"], "--json nowhere/at/all.json: there is no directory nowhere/at"),
        (["--live", "--json", "/"], "--json /: cannot be written"),
        (["--live", "--seed", "-1"], "--seed"),
        (["--live", "--seed", "x"], "--seed"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = steelyard("traps", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if "--seed" not in arguments:  # those are typer's own
        assert done.stderr.count("\n") == 1


def test_the_list_names_every_trap() -> None:
    done = steelyard("traps", "--list")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert "uneven-weight" in names
    assert "3,000 requests" in done.stdout
    assert steelyard("traps", "--list", "weight").stdout.startswith("uneven-weight")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(number: signal.Signals) -> None:
    with running("traps", "--live", "--short", "weight") as process:
        wait_for_children(process)
        code, out, err = interrupt(process, number)
    assert (code, out) == (130, "")
    assert err == "interrupted: gateway and nodes were stopped\n"


@pytest.mark.scene
@pytest.mark.timeout(240)
def test_the_short_scene_comes_out_as_expected(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = steelyard("traps", "--live", "--short", "weight", "--json", str(file), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "no progress bar where there is no terminal"
    assert "PASS" in done.stdout
    (trap,) = json.loads(file.read_text())["traps"]
    assert (trap["scenario"], trap["short"], trap["requests"], trap["holds"]) == ("uneven-weight", True, 400, True)
    before = trap["legs"]["before"]
    assert 0.10 <= before["figures"]["oom_rate"] <= 0.20
    assert before["figures"]["answered"] + before["figures"]["oom"] == 400
    assert all(check["holds"] for check in before["audit"])
    assert len(before["nodes"]) == 8


@pytest.mark.scene
@pytest.mark.timeout(120)
def test_json_on_stdout_is_json_alone_and_time_that_runs_too_quickly_is_exit_code_1() -> None:
    """A thousand times real speed: a job of 2 s takes 2 ms, and what the machine adds is as much."""
    done = steelyard("traps", "--live", "--short", "weight", "--json", "-", "--time-scale", "0.001", timeout=100)
    assert done.returncode == 1, done.stderr
    (trap,) = json.loads(done.stdout)["traps"]
    assert not trap["holds"]
    broken = [check["name"] for check in trap["legs"]["before"]["audit"] if not check["holds"]]
    assert broken == ["the time scale suits the machine"]
    assert "FAIL" in done.stderr
    assert "a larger --time-scale" in done.stderr
