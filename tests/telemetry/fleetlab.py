"""Health checks without sockets, on a clock that stands until everybody waits, and jumps to the next deadline then."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from steelyard.config.build import settings
from steelyard.config.document import parse_document
from steelyard.config.load import validate
from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Node, NodeSpec, State
from steelyard.proxy.access_log import AccessLog
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.upstream import Upstream
from steelyard.telemetry.fetch import Answer, FetchError
from steelyard.telemetry.health import Health, HealthChecks

INTERVAL = 1.0
LONGEST = 1.2 * INTERVAL
"""Between two checks, in seconds."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting, time passes."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self.loop.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is counted, not measured."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play a scene to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())


Page = Callable[[], Answer] | Answer | Exception


def listing(*models: str, owner: str = "vllm") -> Answer:
    """A `GET /v1/models`."""
    return said({"object": "list", "data": [{"id": name, "owned_by": owner} for name in models]})


def said(document: object, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(document))


def refused() -> FetchError:
    return FetchError("cannot connect: Connection refused", ConnectionRefusedError(111, "Connection refused"))


SILENT = FetchError("no answer within 5 s")


class Server:
    """What stands at a node's address. A page that is not there is a 404."""

    def __init__(self, **pages: Page) -> None:
        self.pages: dict[str, Page] = {}
        self.health: Page = Answer(200, b"")
        self.models: Page | None = listing("llama")
        self.asked: list[tuple[float, str]] = []

    def answer(self, path: str, now: float) -> Answer:
        self.asked.append((now, path))
        fixed: dict[str, Page | None] = {"/health": self.health, "/v1/models": self.models}
        page = {**fixed, **self.pages}.get(path)
        if page is None:
            return Answer(404, b"")
        if isinstance(page, Exception):
            raise page
        return page if isinstance(page, Answer) else page()

    def count(self, path: str) -> int:
        return sum(asked == path for _, asked in self.asked)


class Lab:
    """A gateway whose nodes are checked, and the servers behind the nodes."""

    def __init__(self) -> None:
        config = validate(parse_document("nodes: [{url: http://unused:1}]", "test", {}), "test")
        self.loop = asyncio.get_running_loop()
        self.fleet = Fleet()
        self.gateway = Gateway(
            Balancer(self.fleet, Random(1)), settings(config), AccessLog(None), self.loop, self.loop.time
        )
        self.checks = HealthChecks(self.gateway, INTERVAL, self._fetch)
        self.servers: dict[str, Server] = {}

    async def _fetch(
        self, upstream: Upstream, path: str, *, method: str, body: bytes, timeout: float, now: float
    ) -> Answer:
        await asyncio.sleep(0)
        return self.servers[upstream.node.name].answer(path, self.loop.time())

    def node(self, name: str = "a", server: Server | None = None, **spec: Any) -> tuple[Node, Server]:
        """A node that is watched from now on."""
        server = self.servers[name] = server or Server()
        node = self.fleet.add(NodeSpec(name, f"http://{name}:8000", **spec))
        self.checks.watch(node)
        return node, server

    def health(self, node: Node) -> Health:
        return self.checks.health[node]

    async def next_check(self, node: Node, times: int = 1) -> None:
        """Until that many further checks have ended."""
        server = self.servers[node.name]
        health_path = {"sdwebui": "/internal/ping", "triton": "/v2/health/ready", "ollama": "/"}
        for _ in range(times):
            path = health_path.get(node.engine, "/health")
            before = server.count(path)
            deadline = self.loop.time() + 2 * LONGEST
            while server.count(path) == before:
                assert self.loop.time() < deadline, f"no check of {node} came"
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)

    async def until(self, node: Node, state: State, within: float = 20.0) -> None:
        deadline = self.loop.time() + within
        while node.state is not state:
            assert self.loop.time() < deadline, f"{node} did not become {state}"
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.checks.close()
        left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("health ")]
        assert left == []
