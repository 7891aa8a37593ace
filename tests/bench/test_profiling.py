"""The sampler finds the function that burns CPU time, and its stacks are summed up right."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bench.cpu_sampler import TOGGLE
from bench.processes import Process
from bench.profiling import shares
from bench.proxies import REPOSITORY

PROGRAM = """
import sys, time
assert sys.argv[1:] == ["--flag"], sys.argv

def burn():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        sum(range(1000))

def rest():
    time.sleep(0.2)

print("begun", flush=True)
while True:
    burn()
    rest()
"""


def test_a_function_that_burns_is_found_and_one_that_sleeps_is_not(tmp_path: Path) -> None:
    (tmp_path / "burning.py").write_text(PROGRAM)
    out = tmp_path / "stacks.txt"
    script = REPOSITORY / "bench" / "cpu_sampler.py"
    command = [sys.executable, str(script), str(out), "burning", "--flag"]
    with Process("burning", command, tmp_path, {"PYTHONPATH": str(tmp_path)}) as process:
        end = time.monotonic() + 30
        while "begun" not in process.last_words():
            process.check()
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(process.pid, TOGGLE)
        time.sleep(1.5)
        os.kill(process.pid, TOGGLE)
        while not out.exists():
            process.check()
            assert time.monotonic() < end
            time.sleep(0.02)
    folded = out.read_text()
    counts = {
        name: sum(int(line.rsplit(" ", 1)[1]) for line in folded.splitlines() if name in line)
        for name in ("burn (", "rest (")
    }
    assert counts["burn ("] > 20
    assert counts["rest ("] <= counts["burn ("] / 10


def test_shares_are_of_all_samples_and_recursion_counts_once() -> None:
    lines = shares("main;a;b 60\nmain;a;a 20\nmain 20\n").splitlines()
    found = {line.split()[-1]: line.split()[:2] for line in lines[1:]}
    assert found == {"b": ["60.0%", "60.0%"], "a": ["20.0%", "80.0%"], "main": ["20.0%", "100.0%"]}
