"""Processes of the bench: their CPU time is read right, and they end with everything they started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bench.processes import (
    CpuMeter,
    Process,
    StartError,
    exact_cpu_seconds,
    free_port,
    resident_bytes,
    scratch_folder,
    tick_cpu_seconds,
)

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('burnt', flush=True)\ntime.sleep(60)"
PARENT = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {BURN!r}])\ntime.sleep(60)"
LARGE = "import time\nkept = b'x' * 50_000_000\nprint('burnt', flush=True)\ntime.sleep(60)"


def until_burnt(process: Process) -> None:
    end = time.monotonic() + 30
    while "burnt" not in process.last_words():
        process.check()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_cpu_clock_agrees_with_proc_stat(tmp_path: Path) -> None:
    with Process("burn", [sys.executable, "-c", BURN], tmp_path) as process:
        until_burnt(process)
        exact = exact_cpu_seconds(process.pid)
        ticks = sum(tick_cpu_seconds(process.pid))
    assert exact == pytest.approx(ticks, abs=0.05)
    assert exact >= 0.5


def test_a_meter_counts_the_children_and_only_what_came_after_its_start(tmp_path: Path) -> None:
    with Process("parent", [sys.executable, "-c", PARENT], tmp_path) as process:
        until_burnt(process)
        meter = CpuMeter(process.pid)
        assert len(meter._pids) == 2
        assert meter.seconds() < 0.2


def test_resident_bytes_see_what_a_process_keeps(tmp_path: Path) -> None:
    with (
        Process("small", [sys.executable, "-c", LARGE.replace("50_000_000", "1")], tmp_path) as small,
        Process("large", [sys.executable, "-c", LARGE], tmp_path) as large,
    ):
        until_burnt(small)
        until_burnt(large)
        assert resident_bytes(large.pid) - resident_bytes(small.pid) == pytest.approx(50e6, rel=0.1)


def test_stop_ends_the_children_too(tmp_path: Path) -> None:
    with Process("parent", [sys.executable, "-c", PARENT], tmp_path) as process:
        until_burnt(process)
        family = CpuMeter(process.pid)._pids
    assert len(family) == 2
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in family):
        # The child was handed to init, which reaps it in its own time; a zombie no longer runs.
        states = [_state(pid) for pid in family]
        if all(state in ("Z", "") for state in states):
            break
        assert time.monotonic() < end, states
        time.sleep(0.02)
    process.stop()


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def test_a_process_that_ended_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Process(
        "broken", [sys.executable, "-c", "print('no such directive'); raise SystemExit(7)"], tmp_path
    ) as broken:
        broken.wait(30)
        with pytest.raises(StartError, match=r"broken ended with exit code 7: no such directive"):
            broken.check()


def test_free_ports_differ_and_are_not_in_the_ephemeral_range() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert max(ports) < 32768


def test_the_scratch_folder_goes_also_when_the_run_is_broken_off() -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:  # noqa: PT012
        (folder / "log").write_text("x")
        raise KeyboardInterrupt
    assert not os.path.exists(folder)
