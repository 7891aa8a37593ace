"""The card of a node at work: a FIFO, memory and shared compute, driven by the loop's timers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from steelyard.emulator.clock import EmulatedClock
from steelyard.emulator.compute import SharedProcessor
from steelyard.emulator.memory import Card, CudaOutOfMemory


class Job:
    """Work for the card: bytes it holds while it is there, and seconds on the idle card.

    ``done(job)`` is called once, unless the job is cancelled; ``error`` then tells what went wrong, if anything.
    """

    __slots__ = (
        "done",
        "ended_at",
        "error",
        "forced_oom",
        "label",
        "memory",
        "stall",
        "started_at",
        "state",
        "timer",
        "work",
    )

    def __init__(
        self,
        memory: int,
        work: float,
        done: Callable[[Job], None],
        *,
        label: str = "",
        stall: float = 0.0,
        forced_oom: bool = False,
    ) -> None:
        self.memory = memory
        self.work = work
        self.done = done
        self.label = label
        self.stall = stall  # seconds that it holds its memory before it computes
        self.forced_oom = forced_oom
        self.state = "new"  # queued, failing, stalled, computing, over
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.error = ""
        self.timer: asyncio.TimerHandle | None = None


class Gpu:
    """Runs jobs in order of arrival, at most ``concurrency`` at once (None: no limit, so that they can collide)."""

    def __init__(
        self, clock: EmulatedClock, card: Card, *, speed: float, concurrency: int | None, oom_seconds: float
    ) -> None:
        self.card = card
        self.processor = SharedProcessor(speed=speed)
        self._clock = clock
        self._concurrency = concurrency
        self._oom_seconds = oom_seconds
        self._queue: deque[Job] = deque()
        self._active: dict[Job, None] = {}  # in order of start
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    @property
    def queued(self) -> list[Job]:
        return list(self._queue)

    @property
    def active(self) -> list[Job]:
        return list(self._active)

    def submit(self, job: Job) -> None:
        """A job arrives: it starts now, or waits for its turn."""
        job.state = "queued"
        self._queue.append(job)
        self._start_waiting()
        self._arm()

    def cancel(self, job: Job) -> None:
        """The job stops and gives its memory back; nothing is called. Idempotent."""
        if job.state == "queued":
            self._queue.remove(job)
        elif job in self._active:
            self.processor.remove(self._clock.now(), job)
            self._leave(job, self._clock.now())
            self._start_waiting()
            self._arm()
        job.state = "over"

    def set_speed(self, speed: float) -> None:
        self.processor.set_speed(self._clock.now(), speed)
        self._arm()

    def clear(self) -> None:
        """The process died: no job, no memory, nothing is called."""
        now = self._clock.now()
        for job in [*self._active, *self._queue]:
            self.processor.remove(now, job)
            self._leave(job, now)
        self._queue.clear()
        self.card.clear()
        self._arm()

    def _start_waiting(self) -> None:
        while self._queue and (self._concurrency is None or len(self._active) < self._concurrency):
            self._start(self._queue.popleft())

    def _start(self, job: Job) -> None:
        now = job.started_at = self._clock.now()
        self._active[job] = None
        try:
            if job.forced_oom:
                raise CudaOutOfMemory(self.card.refusal(job.memory))
            self.card.allocate(job, job.memory)
        except CudaOutOfMemory as error:
            job.error = str(error)
            job.state = "failing"
            job.timer = self._clock.call_later(self._oom_seconds, self._failed, job)
            return
        if job.stall > 0:
            job.state = "stalled"
            job.timer = self._clock.call_later(job.stall, self._stalled, job)
        else:
            job.state = "computing"
            self.processor.add(now, job, job.work)

    def _failed(self, job: Job) -> None:
        self._leave(job, self._clock.now())
        self._start_waiting()
        self._arm()
        job.done(job)

    def _stalled(self, job: Job) -> None:
        job.state = "computing"
        self.processor.add(self._clock.now(), job, job.work)
        self._arm()

    def _leave(self, job: Job, at: float) -> None:
        self._active.pop(job, None)
        self.card.release(job)
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        job.state = "over"
        job.ended_at = at

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        finished = self.processor.advance(self._clock.now())
        for at, job in finished:
            assert isinstance(job, Job)
            self._leave(job, at)
        self._start_waiting()
        self._arm()
        for _, job in finished:
            assert isinstance(job, Job)
            job.done(job)

    def _arm(self) -> None:
        due = self.processor.next_event()
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = None if due is None else self._clock.call_at(due, self._tick)
