"""Health checks: each node is asked regularly whether it is well, and what it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from steelyard.core.node import Event, Node, State
from steelyard.proxy.gateway import Gateway
from steelyard.telemetry.fetch import Answer, FetchError, fetch
from steelyard.telemetry.recognise import HEALTH_PATHS, Unanswered, recognise

FAILURES = 3
"""Failed checks in a row that make a node `down`; one late answer of a busy engine is no death."""
SUCCESSES = 2
"""Passed checks in a row that bring it back."""
TIMEOUT_SECONDS = 5.0
"""For one check. SGLang's health may run a real generation, which takes a second and more."""
MODELS_EVERY = 10
"""Checks between two looks at the list of models (adapters come and go at run time)."""
JITTER = 0.2
"""Share of the interval by which checks are spread, so that they do not come in step."""

Fetch = Callable[..., Awaitable[Answer]]
"""As `fetch.fetch`."""


@dataclass(slots=True)
class Health:
    """What the checks of one node found."""

    failures: int = 0
    """In a row."""
    successes: int = 0
    """In a row, and since the node was marked down."""
    checks: int = 0
    last_error: str = ""
    """Of the last check; empty when it passed."""
    down: bool = False
    """The node was down when its last check ended."""
    look: bool = False
    """What it is and serves is asked with the next check that passes, whatever was known before."""
    reported: bool = False
    """That it cannot be reached was logged, and it has not been reached since."""
    silent: bool = False
    """That it does not tell what it serves was logged, and it has not told it since."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next check should not wait for its time."""


class HealthChecks:
    """One task a node, for as long as the node is in the fleet."""

    def __init__(self, gateway: Gateway, interval: float, fetch: Fetch = fetch) -> None:
        """`interval` in seconds; `fetch` asks a node."""
        self.interval = interval
        self.health: dict[Node, Health] = {}
        self._gateway = gateway
        self._fetch = fetch
        self._tasks: dict[Node, asyncio.Task[None]] = {}
        self._log = structlog.get_logger("steelyard.health")

    def watch(self, node: Node) -> None:
        """Begin to check a node."""
        self.health[node] = Health()
        self._tasks[node] = asyncio.get_running_loop().create_task(self._run(node), name=f"health {node.name}")

    def look_again(self, node: Node) -> None:
        """Ask a node soon what it is and which models it serves: what was said of it has changed."""
        health = self.health.get(node)
        if health is not None:
            health.look = True
            health.wake.set()

    async def close(self) -> None:
        """Stop all checks."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, node: Node) -> None:
        health, rng = self.health[node], self._gateway.balancer.rng
        try:
            while node.state is not State.GONE:
                try:
                    await self.check(node)
                except Exception as error:
                    self._broken(node, health, error)
                pause = self.interval * (1 + JITTER * (2 * rng.random() - 1))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await health.wake.wait()
                health.wake.clear()
        finally:
            self.health.pop(node, None)
            self._tasks.pop(node, None)

    def _broken(self, node: Node, health: Health, error: Exception) -> None:
        """A check ended in a way that nobody foresaw: the node is not known to be well, and the next check comes."""
        problem = f"the check failed: {type(error).__name__}: {error}"
        if problem != health.last_error:
            self._log.error("the check of a node failed", node=node.name, exc_info=error)
        try:
            self._count_failure(node, health, problem)
        except Exception as second:
            self._log.error("a node could not be marked", node=node.name, exc_info=second)

    async def check(self, node: Node) -> None:
        """One check, and what follows from it."""
        health = self.health.setdefault(node, Health())
        refused = False
        try:
            problem = await self._ask_health(node)
        except FetchError as error:
            problem, refused = str(error), error.refused
            if error.cause is not None and self._gateway.out_of_descriptors(error.cause):
                # That is no fault of the node's, and says nothing about it.
                health.last_error = f"not checked: the gateway has no file descriptors left ({problem})"
                return
        if node.state is State.GONE:
            return
        health.checks += 1
        if problem:
            self._count_failure(node, health, problem, refused)
        else:
            await self._count_success(node, health)
        health.down = node.state is State.DOWN

    def _count_failure(self, node: Node, health: Health, problem: str, refused: bool = False) -> None:
        health.last_error = problem
        health.successes = 0
        health.failures += 1
        if node.state is State.GONE or not (refused or health.failures >= FAILURES):
            return
        if node.state in (State.READY, State.WARMING):
            self._log.warning("node down", node=node.name, url=node.spec.url, reason=problem)
        elif node.state is State.JOINING and not health.reported:
            self._log.warning("node not reachable yet", node=node.name, url=node.spec.url, reason=problem)
        health.reported = True
        if refused:
            self._gateway.node_refused(node)
        else:
            self._gateway.node_event(node, Event.FAILED)

    async def _count_success(self, node: Node, health: Health) -> None:
        if node.state is State.DOWN and not health.down:
            # A request found nobody there after the last check: what passed before that does not count.
            health.successes = 0
        health.last_error = ""
        health.reported = False
        health.failures = 0
        health.successes += 1
        event = self._gateway.node_event
        if node.state is State.JOINING:
            event(node, Event.REACHED)
        if node.state is State.WARMING:
            if await self._recognise(node, health) and node.state is State.WARMING:
                event(node, Event.WARMED)
                models = sorted(node.models or ())
                self._log.info("node ready", node=node.name, url=node.spec.url, engine=node.engine, models=models)
        elif node.state is State.DOWN:
            if health.successes >= SUCCESSES and await self._recognise(node, health) and node.state is State.DOWN:
                event(node, Event.RECOVERED)
                self._log.info("node back", node=node.name, url=node.spec.url, engine=node.engine)
        elif health.look or health.checks % MODELS_EVERY == 0:
            await self._recognise(node, health)

    async def _ask_health(self, node: Node) -> str:
        """What is the matter with the node; empty when it is well. Raises FetchError."""
        path = HEALTH_PATHS.get(node.engine, "/health")
        answer = await self._ask(node, "GET", path)
        if answer.status == 404 and path != "/health" and node.spec.engine == "auto" and node.state is not State.READY:
            # What was recognised there has that page: another server may have taken its place.
            path = "/health"
            answer = await self._ask(node, "GET", path)
        return "" if _well(path, answer) else f"GET {path} answered {answer.status}"

    async def _recognise(self, node: Node, health: Health) -> bool:
        """Ask what the node is and serves; False while that is not known."""

        async def ask(method: str, path: str, body: bytes) -> Answer | None:
            try:
                return await self._ask(node, method, path, body)
            except FetchError:
                return None

        spec = node.spec
        # A node that was away may be another server now; one that was reconfigured is to be believed anew.
        afresh = health.look or node.state is not State.READY
        try:
            found = await recognise(ask, spec.engine)
        except Unanswered as error:
            if spec.engine != "auto" and spec.models is not None:
                # All that decisions need is configured.
                return True
            health.last_error = f"what it serves is not known yet: {error}"
            if not health.silent and node.state is not State.READY:
                health.silent = True
                remedy = "the node is used when it answers, or when its engine and models are configured"
                self._log.warning("node does not tell what it serves", node=node.name, reason=str(error), remedy=remedy)
            return False
        if spec is not node.spec or node.state is State.GONE:
            # It was reconfigured meanwhile, and is asked again.
            return False
        if afresh or found.models is not None or node.models is None:
            health.look = False
            health.silent = False
            self._gateway.upstream(node).model_cards = found.cards
            self._gateway.balancer.fleet.recognised(node, found.engine, found.models)
        return True

    async def _ask(self, node: Node, method: str, path: str, body: bytes = b"") -> Answer:
        upstream = self._gateway.upstream(node)
        now = self._gateway.clock()
        return await self._fetch(upstream, path, method=method, body=body, timeout=TIMEOUT_SECONDS, now=now)


def _well(path: str, answer: Answer) -> bool:
    if answer.status == 200:
        return True
    # A server without a health page is alive when it answers at all.
    return path == "/health" and answer.status < 500
