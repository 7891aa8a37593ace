"""Processes that the bench starts: free ports, start, readiness, CPU time, resident memory, and a sure end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
# Every peer ends within this at SIGTERM; what would rather finish its streams is not waited for.
STOP_GRACE_SECONDS = 1.0
# How long a program that ends by itself may take, its own delays included.
END_SECONDS = 20.0
# Below the kernel's ephemeral range (32768 and up by default), so that none of the thousands of outgoing
# connections of a run can sit on a port that a proxy is about to listen on.
PORT_RANGE = range(20_000, 32_000)

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_handed_out: set[int] = set()


class StartError(RuntimeError):
    """A process that the bench needs did not come up; the message has the end of what it said."""


def free_port() -> int:
    """A loopback TCP port that nothing listens on and that this run has not handed out before."""
    for _ in range(1000):
        port = random.choice(PORT_RANGE)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise StartError(f"no free port on {LOOPBACK} between {PORT_RANGE.start} and {PORT_RANGE.stop}")


def raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard one (children inherit it) and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder for configurations and logs that is removed whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A child in a process group of its own: ctrl-C reaches only the bench, and the bench ends the whole group."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(env or {})},
                process_group=0,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def last_words(self, lines: int = 8) -> str:
        """The end of what the process wrote, for error messages."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def check(self) -> None:
        """Raise `StartError` if the process has ended."""
        if not self.running:
            raise StartError(f"{self.name} ended with exit code {self._child.returncode}: {self.last_words()}")

    def wait(self, seconds: float) -> None:
        """Wait for it to end by itself; raises `subprocess.TimeoutExpired`."""
        self._child.wait(seconds)

    def interrupt(self) -> None:
        """Ask it to end (SIGTERM) and wait; used where its own way of ending matters, as under a profiler."""
        with contextlib.suppress(ProcessLookupError):
            self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_SECONDS)

    def stop(self) -> None:
        """End the whole group: SIGTERM, a grace, SIGKILL. Safe to call twice."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_GRACE_SECONDS)
        # The leader may be gone while a worker is not (nginx leaves them when its master is killed).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def descendants(pid: int) -> list[int]:
    """`pid` and every process under it, from ``/proc/*/stat``."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = int(_stat_fields(int(entry))[1])
                children.setdefault(parent, []).append(int(entry))
    family = [pid]
    for member in family:
        family.extend(children.get(member, ()))
    return family


def _stat_fields(pid: int) -> list[str]:
    # The second field is the name in brackets and may hold blanks and brackets: cut after the last bracket.
    # What is left starts with field 3 (state), so utime (14) and stime (15) are at 11 and 12.
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def tick_cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system CPU seconds of one process from ``/proc/PID/stat``, in steps of a clock tick (10 ms)."""
    fields = _stat_fields(pid)
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def exact_cpu_seconds(pid: int) -> float:
    """CPU seconds (user + system, all threads, ended ones too) of one process, in nanoseconds' resolution.

    The same sum as utime + stime of ``/proc/PID/stat`` without the rounding to 10 ms: the process's CPU
    clock, whose id is made from the process id as in clock_getcpuclockid(3) of Linux.
    """
    return time.clock_gettime_ns(((~pid) << 3) | 2) / 1e9


def thread_cpu_seconds(pid: int) -> dict[str, float]:
    """CPU seconds of each live thread of a process, by name (those of one name together), in clock ticks."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds: dict[str, float] = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
            name = text[text.index("(") + 1 : text.rindex(")")]
            fields = text[text.rindex(")") + 2 :].split()
            seconds[name] = seconds.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return seconds


class CpuMeter:
    """CPU time of a process and its children between two readings."""

    def __init__(self, pid: int) -> None:
        self._pids = descendants(pid)
        self._exact = sum(exact_cpu_seconds(p) for p in self._pids)
        self._ticks = [tick_cpu_seconds(p) for p in self._pids]

    def seconds(self) -> float:
        """CPU seconds since the meter was made."""
        return sum(exact_cpu_seconds(p) for p in self._pids) - self._exact

    def system_share(self) -> float:
        """Share of that time spent in the kernel, from the coarse ticks; 0.0 where no tick has passed."""
        user = system = 0.0
        for pid, before in zip(self._pids, self._ticks, strict=True):
            now = tick_cpu_seconds(pid)
            user += now[0] - before[0]
            system += now[1] - before[1]
        return system / (user + system) if user + system else 0.0


def resident_bytes(pid: int) -> int:
    """Resident set of a process and its children, in bytes. Pages that they share count once for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) * page for p in descendants(pid))
