"""Where Steelyard's CPU time goes: a profile of a running `serve` under the plain and the stream load."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.cpu_sampler import TOGGLE
from bench.measures import FULL, MEASURES, Measure
from bench.processes import CpuMeter, StartError, descendants, thread_cpu_seconds
from bench.proxies import REPOSITORY
from bench.run import Entrant, Running, sampled

PROFILE_SECONDS = 6.0
TOP = 30


def profile(entrant: Entrant, folder: Path, target: Path) -> str:
    """Run the plain and the stream load under `bench.cpu_sampler` and return a text that says where CPU went.

    The folded stacks go to `target` with the name of the load in it; any flame graph tool reads them.
    """
    text = []
    for measure in MEASURES:
        if measure.name in ("plain", "stream"):
            raw = target.with_name(f"{target.stem}-{measure.name}{target.suffix}").resolve()
            raw.unlink(missing_ok=True)
            home = folder / f"profile-{measure.name}"
            home.mkdir()
            text.append(_profiled(measure, entrant, home, raw))
    return "\n".join(text)


def _profiled(measure: Measure, entrant: Entrant, home: Path, raw: Path) -> str:
    interpreter = [entrant.program, str(REPOSITORY / "bench" / "cpu_sampler.py"), str(raw)]
    pace = replace(FULL, plain_seconds=PROFILE_SECONDS, stream_seconds=PROFILE_SECONDS)
    with (
        measure.nodes(home) as nodes,
        Running(measure, entrant, nodes, FULL, home, interpreter) as subject,
    ):
        sampled(measure, subject, replace(FULL, plain_seconds=1.0, stream_seconds=1.0))
        meter = CpuMeter(subject.pid)
        threads = {pid: thread_cpu_seconds(pid) for pid in descendants(subject.pid)}
        os.kill(subject.pid, TOGGLE)
        figures, _ = sampled(measure, subject, pace)
        os.kill(subject.pid, TOGGLE)
        used = meter.seconds()
        rows = [f"{measure.name}: {figures['cpu_us']:.1f} us under the profiler; folded stacks in {raw.name}"]
        rows.append(f"  {figures['system_share']:6.1%}  in the kernel (threads and functions below include it)")
        for pid, before in threads.items():
            for thread, seconds in thread_cpu_seconds(pid).items():
                share = (seconds - before.get(thread, 0.0)) / used
                if share >= 0.005:
                    rows.append(f"  {share:6.1%}  thread {thread}")
        end = time.monotonic() + 5
        while not raw.exists():
            if time.monotonic() > end:
                raise StartError("the profiler wrote nothing: is SIGUSR2 taken by `serve`?")
            time.sleep(0.05)
    return "\n".join(rows) + "\n" + shares(raw.read_text())


def shares(folded: str) -> str:
    """Functions of folded stacks (``a;b;c 12``) by their share of all samples.

    *own* is time in the function itself and in the C code and the system calls that it made, *with* includes
    the Python functions that it called.
    """
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    total = sum(own.values()) or 1
    rows = ["     own    with  function"]
    rows += [f"  {n / total:6.1%}  {within[name] / total:6.1%}  {name}" for name, n in own.most_common(TOP)]
    return "\n".join(rows)
