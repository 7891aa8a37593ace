"""What all engines share: routes, refusals, telemetry that can freeze, and jobs on the card."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from steelyard.emulator.exchange import BadBody, Exchange
from steelyard.emulator.execution import Execution
from steelyard.emulator.gpu import Gpu, Job
from steelyard.emulator.memory import Card

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

encode = msgspec.json.encode

# Beyond the OOM texts, a request that is refused is refused in the words of its engine.
ENGINE_DEAD = "The server had an error while processing your request."


class Refusal(Exception):
    """The engine does not do what is asked: an HTTP status and its message."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


class Telemetry(NamedTuple):
    """What an engine tells of itself on one path."""

    content_type: str
    render: Callable[[], bytes]


WorkHandler = Callable[[Exchange, Execution], None]
PlainHandler = Callable[..., None]


class Engine:
    """One engine of one node. Subclasses fill the tables and say how a refusal looks."""

    cancels_on_disconnect: ClassVar[bool] = False
    health_paths: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, node: EmulatedNode) -> None:
        self.node = node
        self.profile = node.profile
        self.models = node.profile.served_models
        self.cancels = self.cancels_on_disconnect
        if node.profile.cancels_on_disconnect is not None:
            self.cancels = node.profile.cancels_on_disconnect
        self.card = self.make_card()
        self.work: dict[str, WorkHandler] = {}  # POST path -> handler of requests that compute
        self.work_patterns: list[tuple[re.Pattern[str], Callable[..., None]]] = []
        self.plain: dict[tuple[str, str], PlainHandler] = {}  # (method, path)
        self.plain_patterns: list[tuple[str, re.Pattern[str], PlainHandler]] = []
        self.telemetry: dict[str, Telemetry] = {}

    def make_card(self) -> Card:
        return Card(self.profile.gpu_memory, self.profile.resident or 0)

    # -- routes --------------------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        """Answer a request that no fault took."""
        request = exchange.request
        method = "GET" if request.method == "HEAD" else request.method
        try:
            if method == "POST":
                work = self._work_handler(request.path)
                if work is not None:
                    execution = self.node.begin(exchange)
                    if execution is not None:
                        work(exchange, execution)
                    return
            plain = self.plain.get((method, request.path))
            if plain is not None:
                plain(exchange)
                return
            for pattern_method, pattern, handler in self.plain_patterns:
                found = pattern.fullmatch(request.path)
                if found and pattern_method == method:
                    handler(exchange, *found.groups())
                    return
            if self._known(request.path):
                self.refuse(exchange, Refusal(405, "Method Not Allowed"))
            else:
                self.refuse(exchange, Refusal(404, "Not Found"))
        except BadBody as error:
            self.refuse(exchange, Refusal(400, str(error)))
        except Refusal as refusal:
            self.refuse(exchange, refusal)

    def _work_handler(self, path: str) -> WorkHandler | None:
        handler = self.work.get(path)
        if handler is not None:
            return handler
        for pattern, action in self.work_patterns:
            found = pattern.fullmatch(path)
            if found:
                groups = found.groups()
                return lambda exchange, execution: action(exchange, execution, *groups)
        return None

    def _known(self, path: str) -> bool:
        return (
            self._work_handler(path) is not None
            or any(known == path for _, known in self.plain)
            or any(pattern.fullmatch(path) for _, pattern, _ in self.plain_patterns)
        )

    def json(self, exchange: Exchange, body: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> None:
        exchange.answer(status, encode(body), headers=headers)

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Answer an error in the engine's own shape."""
        raise NotImplementedError

    def out_of_memory(self, exchange: Exchange, execution: Execution, message: str) -> None:
        """Answer an out-of-memory error in the engine's own shape."""
        execution.oom = True
        self.refuse(exchange, Refusal(500, message))

    def model_list(self, exchange: Exchange) -> None:
        """The OpenAI list of models."""
        self.json(exchange, {"object": "list", "data": [self.model_card(model) for model in self.models]})

    def one_model(self, exchange: Exchange, model: str) -> None:
        if model not in self.models:
            raise Refusal(404, f"The model `{model}` does not exist.", "model")
        self.json(exchange, self.model_card(model))

    def model_card(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self.node.created, "owned_by": self.profile.engine}

    # -- state ---------------------------------------------------------------------------------------------------

    def set_speed(self, speed: float) -> None:
        """The card works at ``speed`` times the unit speed from now on."""
        raise NotImplementedError

    def clear(self) -> None:
        """The process died: all work is lost, and nothing is answered."""
        raise NotImplementedError

    def busy_seconds(self) -> float:
        """Emulated seconds in which the card computed."""
        raise NotImplementedError

    def load(self) -> dict[str, Any]:
        """Running, waiting and the like, for the statistics."""
        raise NotImplementedError


class CardEngine(Engine):
    """An engine whose requests are jobs that hold device memory and share the card's compute."""

    default_concurrency: ClassVar[int | None] = None

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(node)
        concurrency = self.profile.concurrency if self.profile.concurrency is not None else self.default_concurrency
        self.gpu = Gpu(
            node.clock,
            self.card,
            speed=self.profile.speed,
            concurrency=concurrency,
            oom_seconds=self.profile.oom_seconds,
        )

    def run(
        self,
        exchange: Exchange,
        execution: Execution,
        memory: int,
        seconds: float,
        respond: Callable[[], None],
        label: str = "",
    ) -> None:
        """Compute ``seconds`` with ``memory`` bytes, then ``respond``; an OOM is answered instead."""
        limit = self.profile.queue_limit
        if limit is not None and len(self.gpu.queued) >= limit:
            self.queue_full(exchange)
            return
        execution.memory = memory
        execution.seconds = seconds

        def done(job: Job) -> None:
            execution.started_at = job.started_at
            execution.computed_at = job.ended_at
            if job.error:
                self.out_of_memory(exchange, execution, job.error)
            else:
                respond()

        job = Job(
            memory,
            seconds,
            done,
            label=label or execution.id,
            stall=self.node.draw_stall(),
            forced_oom=self.node.faults.oom,
        )
        if self.cancels:
            execution.on_lost = lambda: self.gpu.cancel(job)
        self.gpu.submit(job)

    def queue_full(self, exchange: Exchange) -> None:
        self.refuse(exchange, Refusal(503, "Exceeds maximum queue size"))

    def set_speed(self, speed: float) -> None:
        self.gpu.set_speed(speed)

    def clear(self) -> None:
        self.gpu.clear()

    def busy_seconds(self) -> float:
        return self.gpu.processor.busy_seconds(self.node.clock.now())

    def load(self) -> dict[str, Any]:
        return {"running": len(self.gpu.active), "waiting": len(self.gpu.queued)}
