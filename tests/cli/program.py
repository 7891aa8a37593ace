"""The program `steelyard` as a process that a test can watch, interrupt and outlive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SOURCE = str(Path(__file__).parents[2] / "src")


def environment(**changes: str) -> dict[str, str]:
    """Without variables that would configure it, and with this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEELYARD_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [SOURCE, kept.get("PYTHONPATH")])), **changes}


def steelyard(*arguments: str, timeout: float = 55) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "steelyard", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env=environment(),
        check=False,
    )


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """It runs; what is left of it at the end is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "steelyard", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield process
    finally:
        for child in children(process):
            child.kill()
        process.kill()
        process.communicate(timeout=10)


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that it has started."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_for_children(process: subprocess.Popen[str], timeout: float = 30) -> list[psutil.Process]:
    """Wait until it has started a process."""
    deadline = time.monotonic() + timeout
    while not (found := children(process)):
        assert time.monotonic() < deadline, "it has started no process"
        assert process.poll() is None, "it has ended"
        time.sleep(0.02)
    return found


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
    """Ctrl-C; its exit code, stdout and stderr. All that it has started must have ended too."""
    started = children(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert [child.pid for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    return process.returncode, out, err
