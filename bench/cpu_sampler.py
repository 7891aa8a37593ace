"""Runs a Python module and samples where its CPU time goes.

``python -m bench.cpu_sampler OUT MODULE ARGUMENTS`` is ``python -m MODULE ARGUMENTS``; SIGUSR2 starts sampling,
the next one ends it and writes folded stacks (``a;b;c 12``) to OUT.

A profiler that samples by the wall clock charges a system call with the time for which the other processes of the
machine have the CPU, and that is most of the time when load generator, proxy and back end share two cores. Here
the timer is ITIMER_PROF of setitimer(2), which runs only while this process does. The handler of Python runs at
the next bytecode of the main thread, so C code is charged to the function that called it.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

# CPU seconds between two samples: a thousand samples a second would themselves be seen in the figures.
INTERVAL_SECONDS = 0.002
TOGGLE = signal.SIGUSR2


class CpuSampler:
    """Counts the stacks that ITIMER_PROF finds."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._running = False
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()

    def install(self) -> None:
        """Listen to the signals."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(TOGGLE, self._toggle)
        signal.siginterrupt(signal.SIGPROF, False)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(reversed(stack))] += 1

    def _toggle(self, _number: int, _frame: FrameType | None) -> None:
        self._running = not self._running
        interval = INTERVAL_SECONDS if self._running else 0.0
        signal.setitimer(signal.ITIMER_PROF, interval, interval)
        if not self._running:
            self.write()

    def write(self) -> None:
        """Write what was counted, whole or not at all."""
        draft = self._out.with_name(self._out.name + ".part")
        draft.write_text("".join(f"{';'.join(map(named, stack))} {n}\n" for stack, n in self._stacks.items()))
        draft.replace(self._out)


def named(code: CodeType) -> str:
    """A function as it is shown: qualified name, file below its package, first line."""
    parts = Path(code.co_filename).parts
    below = parts.index("steelyard") if "steelyard" in parts[:-1] else len(parts) - 2
    return f"{code.co_qualname} ({'/'.join(parts[max(below, 0) :])}:{code.co_firstlineno})".replace(";", ",")


def main() -> None:
    """Command line: OUT MODULE ARGUMENTS."""
    out, module, *arguments = sys.argv[1:]
    CpuSampler(Path(out)).install()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
