"""The course of a run: start back ends and proxies, take the samples in alternating order, stop everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import payloads
from bench.figures import Results, Sample
from bench.load import wait_until_answered
from bench.loops import run as run_loop
from bench.measures import CONNECTIONS, IDLE_WARM_UP, Figures, Measure, Pace, Subject
from bench.processes import Process, StartError
from bench.proxies import Proxy, new_setting, start

DIRECT = "direct"
# Problems after which a proxy is not tried again in a measure: a broken one must not eat the time of the others.
RETIRED = 2
# No sample takes longer than this, whatever hangs.
SAMPLE_SECONDS = 90.0


@dataclass(frozen=True)
class Entrant:
    """A proxy that takes part, and its program on this machine."""

    proxy: Proxy
    program: str


class Clock:
    """What is left of the time that a run may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def up(self) -> bool:
        return time.monotonic() >= self._end


def order(names: Sequence[str], round_number: int) -> list[str]:
    """A B C in even rounds, C B A in odd ones, so that drift of the machine favours nobody."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


class Running:
    """A proxy from its start, through its first answered request, to its end.

    `wrapper` goes to `start`: the words of a profiler.
    """

    def __init__(
        self,
        measure: Measure,
        entrant: Entrant,
        nodes: tuple[int, int],
        pace: Pace,
        folder: Path,
        wrapper: Sequence[str] = (),
    ) -> None:
        connections = pace.idle_streams + IDLE_WARM_UP if measure.fresh else 4 * CONNECTIONS
        self._setting = new_setting(nodes, folder, streaming=measure.streaming, connections=connections)
        self._entrant = entrant
        self._wrapper = wrapper
        self._process: Process | None = None

    @property
    def config(self) -> str:
        """The configuration, as text."""
        return self._entrant.proxy.launch(self._entrant.program, self._setting).config

    def __enter__(self) -> Subject:
        proxy, setting = self._entrant.proxy, self._setting
        self._process = start(proxy, self._entrant.program, setting, self._wrapper)
        try:
            request = payloads.http_request(setting.port, payloads.chat_body())
            if not wait_until_answered(setting.port, request, self._process.check):
                raise StartError(f"{proxy.name} does not answer: {self._process.last_words()}")
            if proxy.ready_path is not None:
                question = payloads.get_request(setting.admin, proxy.ready_path)
                if not wait_until_answered(setting.admin, question, self._process.check):
                    raise StartError(f"{proxy.name} is not ready: {self._process.last_words()}")
        except BaseException:
            self._process.stop()
            raise
        return Subject(proxy.name, setting.port, setting.admin, self._process, setting.folder)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop()


class Session:
    """One measure in a run: the proxies behind which the same back ends stand, and the samples of all rounds."""

    def __init__(
        self,
        measure: Measure,
        entrants: Sequence[Entrant],
        nodes: tuple[int, int],
        pace: Pace,
        folder: Path,
        results: Results,
    ) -> None:
        self._measure = measure
        self._entrants = {entrant.proxy.name: entrant for entrant in entrants}
        self._nodes = nodes
        self._pace = pace
        self._folder = folder
        self._results = results
        self._subjects: dict[str, Subject] = {}
        self.configs: dict[str, str] = {}

    def _running(self, name: str) -> Running:
        running = Running(self._measure, self._entrants[name], self._nodes, self._pace, self._folder)
        self.configs[name] = running.config
        return running

    def start_all(self, stack: ExitStack) -> None:
        """Start every proxy, to be stopped by `stack`, and warm each up with a short sample that is thrown away."""
        if self._measure.direct:
            self._subjects[DIRECT] = Subject(DIRECT, self._nodes[0], 0, None, self._folder)
        for name in self._entrants:
            try:
                self._subjects[name] = stack.enter_context(self._running(name))
            except StartError as error:
                self._results.add(Sample(self._measure.name, name, 0, problem=str(error)))
        short = replace(self._pace, plain_seconds=1.0, stream_seconds=0.3, latency_seconds=0.3, bodies_seconds=0.3)
        for subject in self._subjects.values():
            try:
                sampled(self._measure, subject, short)
            except (StartError, OSError, TimeoutError):
                # The rounds that follow meet the same problem and report it.
                continue

    def names(self) -> list[str]:
        """What is still worth taking samples of, in the order of even rounds."""
        names = list(self._entrants) if self._measure.fresh else list(self._subjects)
        return [name for name in names if self._results.problem_count(self._measure.name, name) < RETIRED]

    def take(self, name: str, number: int) -> Sample:
        """One sample, or why there is none."""
        try:
            if self._measure.fresh:
                with self._running(name) as subject:
                    figures, errors = sampled(self._measure, subject, self._pace)
            else:
                figures, errors = sampled(self._measure, self._subjects[name], self._pace)
        except TimeoutError:
            return Sample(self._measure.name, name, number, problem="took too long")
        except (StartError, OSError) as error:
            return Sample(self._measure.name, name, number, problem=str(error))
        return Sample(self._measure.name, name, number, figures, errors)


def sampled(measure: Measure, subject: Subject, pace: Pace) -> Figures:
    """One sample on an event loop of its own, bounded in time."""
    if subject.process is not None:
        subject.process.check()

    async def bounded() -> Figures:
        async with asyncio.timeout(SAMPLE_SECONDS):
            return await measure.sample(subject, pace)

    return run_loop(bounded())


def take(
    measure: Measure,
    entrants: Sequence[Entrant],
    pace: Pace,
    folder: Path,
    clock: Clock,
    results: Results,
    say: Callable[[str], None],
) -> dict[str, str]:
    """All samples of one measure into `results`; returns the configurations used, by proxy."""
    home = folder / measure.name
    home.mkdir()
    with measure.nodes(home) as nodes, ExitStack() as stack:
        session = Session(measure, entrants, nodes, pace, home, results)
        if not measure.fresh:
            session.start_all(stack)
        rounds = pace.idle_rounds if measure.fresh else pace.rounds
        for number in range(rounds):
            say(f"{measure.name}: round {number + 1} of {rounds}")
            for name in order(session.names(), number):
                if clock.up:
                    results.add(Sample(measure.name, name, number, problem="the time of the run was up"))
                else:
                    results.add(session.take(name, number))
    if measure.direct:
        subtract_direct(results, measure.name)
    return session.configs


def subtract_direct(results: Results, measure: str) -> None:
    """Add to each latency sample what its proxy added: its percentile less the back end's of the same round."""
    for key in ("p50_us", "p99_us"):
        direct = results.by_round(measure, DIRECT, key)
        for sample in results.samples:
            if sample.measure == measure and sample.round in direct and key in sample.figures:
                sample.figures[f"added_{key}"] = sample.figures[key] - direct[sample.round]
