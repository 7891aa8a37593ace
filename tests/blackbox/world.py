"""The world of one test: nodes, gateways and clients on one loop, and what must hold at the end of every test."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import steelyard.service
from steelyard.config.load import load
from steelyard.config.schema import Config
from steelyard.core.node import State
from steelyard.core.refusal import STATUSES
from steelyard.proxy.attempt import Attempt
from steelyard.proxy.exchange import Exchange
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.http1 import RequestHead
from steelyard.proxy.relay import Relay
from steelyard.proxy.tunnel import Tunnel
from steelyard.service import Service
from tests.blackbox.fakenode import FakeNode
from tests.blackbox.wire import PATIENCE, Client, Message, request

OUTCOMES = {*STATUSES, "ok", "client_gone", "client_stalled"}
"""Everything that an access log line may say."""


async def eventually(condition: Callable[[], object], what: str = "", patience: float = PATIENCE) -> None:
    """Wait until something is true that no event of the test's own connections announces."""
    deadline = asyncio.get_running_loop().time() + patience
    pause = 0.002
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never became true: {what or condition}"
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.05)


class NoAdmin:
    """Stands in for the admin listener: loading it takes a second, closing it a tenth, and no test here asks it.

    `Process` has the real one.
    """

    port = 0

    def __init__(self, service: Service) -> None:
        pass

    async def start(self, host: str, port: int) -> None:
        pass

    async def close(self) -> None:
        pass


class Running:
    """A gateway that runs in this process."""

    def __init__(self, world: World, service: Service, log: Path, document: dict[str, Any]) -> None:
        self.world = world
        self.service = service
        self.document = document
        self._log = log
        self.stopped = False

    @property
    def gateway(self) -> Gateway:
        return self.service.gateway

    @property
    def exchanges(self) -> set[Any]:
        """Requests under way."""
        return self.gateway.exchanges

    @property
    def port(self) -> int:
        return self.service.port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def client(self) -> Client:
        """A new connection to it."""
        return await self.world.connect(self.port)

    async def ask(self, data: bytes) -> Message:
        """One request on a connection of its own."""
        client = await self.client()
        answer = await client.ask(data)
        client.fin()
        return answer

    def reload(self, **changes: Any) -> None:
        """Take over a changed configuration; keys are dotted paths with `__` for the dot."""
        self.document = {**self.document, **keys(changes)}
        self.service.reload(configuration(self.document))

    def state(self, node: FakeNode) -> State | None:
        """The state of a node in the fleet; None when it is not in it."""
        found = self.gateway.balancer.fleet.nodes.get(node.name)
        return None if found is None else found.state

    def in_flight(self, node: FakeNode) -> int:
        return self.gateway.balancer.fleet.nodes[node.name].in_flight

    def set_timeouts(self, **seconds: float) -> None:
        """Change time limits, also those that the configuration does not have."""
        from dataclasses import replace

        for route in self.gateway.settings.routes:
            route.timeouts = replace(route.timeouts, **seconds)

    def lines(self) -> list[dict[str, Any]]:
        """The access log so far, without a line that is being written."""
        self.gateway.accounting.settle()
        self.gateway.log.flush()
        whole, _, _ = self._log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    async def line(self) -> dict[str, Any]:
        """The only line of the access log, when it is there."""
        await eventually(lambda: len(self.lines()) == 1, "one line in the access log")
        return self.lines()[0]

    # -- what must hold when nothing is under way

    def leftovers(self) -> list[str]:
        """What the gateway still holds although nothing is under way."""
        gateway = self.gateway
        balancer = gateway.balancer
        found = []

        def zero(what: str, value: object) -> None:
            if value:
                found.append(f"{what}: {value}")

        zero("exchanges", list(gateway.exchanges))
        zero("body memory", gateway.body_memory)
        zero("bodies on disk", gateway.body_disk)
        zero("live leases", balancer.ledger.live)
        zero("orphaned leases", balancer.ledger.orphaned)
        zero("retries under way", balancer.retrying)
        zero("waiting", balancer.queue.length)
        zero("lines", balancer.queue._lines or balancer.queue._of_route)
        for node in {*balancer.fleet.nodes.values(), *gateway.upstreams}:
            zero(f"{node.name} in flight", node.in_flight)
            zero(f"{node.name} orphaned", node.orphaned)
            zero(f"{node.name} reserved", node.reserved_memory or node.reserved_seconds or node.reserved_tokens)
            zero(f"{node.name} slots", node.max_in_flight - node.free_slots)
        for node, upstream in gateway.upstreams.items():
            beyond = [
                f"sink {c.sink} closing {c.transport.is_closing()} idle since {c.idle_since}"
                for c in upstream.open - set(upstream.idle)
            ]
            zero(f"connections of {node.name} beyond the pool", beyond)
            zero(f"pooled connections of {node.name} that are closed", set(upstream.idle) - upstream.open)
            zero(
                f"paused pooled connections of {node.name}", [c for c in upstream.idle if not c.transport.is_reading()]
            )
            zero(f"sinks of pooled connections of {node.name}", [c for c in upstream.idle if c.sink is not None])
        for client in gateway.clients:
            zero("a client's exchange", client._exchange)
        return found

    async def at_rest(self, patience: float = 15.0) -> None:
        """Wait until nothing is held any more; says what is when that does not come."""
        try:
            await eventually(lambda: not self.leftovers(), patience=patience)
        except AssertionError:
            raise AssertionError("the gateway holds on to: " + "; ".join(self.leftovers())) from None

        # What the gateway answers itself, without an exchange, has a line without a dialect.
        def of_exchanges() -> int:
            return sum("dialect" in line for line in self.lines())

        await eventually(lambda: of_exchanges() >= self.gateway.begun, "a log line for every request")
        assert of_exchanges() == self.gateway.begun
        lines = self.lines()
        assert len({line["id"] for line in lines}) <= len(lines)
        for line in lines:
            assert line["outcome"] in OUTCOMES, line
            assert line["status"], line

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.service.stop()


def keys(changes: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in changes.items()}


def configuration(document: dict[str, Any]) -> Config:
    return load(None, document, environ={})


def node_entry(node: FakeNode, **more: Any) -> dict[str, Any]:
    """A node of the configuration. Its engine is what the FakeNode claims to be."""
    engine = node.owner if node.owner in ("vllm", "sglang", "llamacpp", "sdwebui", "openai", "generic") else "auto"
    return {"name": node.name, "url": node.url, "engine": engine, **more}


class World:
    """What a test has made; closed, and looked over, by the fixture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: list[FakeNode] = []
        self.gateways: list[Running] = []
        self.clients: list[Client] = []
        self.errors: list[str] = []
        self.closing: list[Callable[[], Awaitable[object]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sockets = 0

    # -- making

    def begin(self) -> None:
        """Called on the loop before the test."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._exception)
        self._tasks = asyncio.all_tasks()
        gc.collect()
        gc.disable()
        self._sockets = sockets()

    def _exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def node(self, *args: Any, **knobs: Any) -> FakeNode:
        """A node that listens."""
        knobs.setdefault("name", f"n{len(self.nodes) + 1}")
        node = FakeNode(*args, **knobs)
        self.nodes.append(node)
        return await node.start()

    async def serve(
        self, *nodes: FakeNode | dict[str, Any], ready: bool = True, seed: int = 7, **changes: Any
    ) -> Running:
        """A gateway in front of nodes. `changes` of the configuration have `__` for the dot in a path."""
        log = self.path / f"access-{len(self.gateways)}.log"
        document = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "access_log": str(log),
            "telemetry.interval": "200ms",
            "shutdown.delay": "0s",
            "nodes": [node_entry(node) if isinstance(node, FakeNode) else node for node in nodes],
            **keys(changes),
        }
        service = Service(configuration(document), Random(seed))
        with patch.object(steelyard.service, "AdminListener", NoAdmin):
            await service.start()
        running = Running(self, service, log, document)
        self.gateways.append(running)
        if ready:
            fleet = service.gateway.balancer.fleet
            await eventually(
                lambda: all(node.state is State.READY for node in fleet.nodes.values()), "all nodes are ready"
            )
        return running

    async def connect(self, port: int) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        self.clients.append(client)
        return client

    # -- the end

    async def close(self, check: bool) -> None:
        """End everything; with `check`, only after nothing is held any more."""
        try:
            if check:
                for running in self.gateways:
                    if not running.stopped:
                        await running.at_rest()
        finally:
            await self._close_all()
            gc.enable()
        if not check:
            return
        assert not (left := kept_alive()), f"only the garbage collector would free {left}"
        assert not self.errors, self.errors
        for node in self.nodes:
            assert not node.problems, node.problems
            await eventually(lambda node=node: not node.open, f"{node.name} has no connection left")
        for running in self.gateways:
            await eventually(lambda running=running: not running.gateway.clients, "no client connection left")
            for node, upstream in running.gateway.upstreams.items():
                await eventually(lambda upstream=upstream: not upstream.open, f"no connection left to {node.name}")
        try:
            await eventually(lambda: not self._new_tasks(), patience=5)
        except AssertionError:
            raise AssertionError(f"tasks left: {self._new_tasks()}") from None
        await eventually(lambda: sockets() <= self._sockets, f"sockets left: {sockets()} > {self._sockets}")

    async def _close_all(self) -> None:
        for close in self.closing:
            await close()
        for client in self.clients:
            if not client.closed:
                client.transport.abort()
        for running in self.gateways:
            await running.stop()
        for node in self.nodes:
            await node.stop()

    def _new_tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - self._tasks - {asyncio.current_task()}


def kept_alive() -> list[str]:
    """What is left of requests: each should have been freed by its last reference."""
    # Not isinstance: it would ask proxies, of libraries, for a class that is gone.
    kinds = (Exchange, Attempt, Relay, RequestHead, Tunnel)
    return sorted(type(thing).__name__ for thing in gc.get_objects() if issubclass(type(thing), kinds))


def sockets() -> int:
    """Sockets that this process has open; 0 where the system does not tell."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return 0
    count = 0
    for name in names:
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def chat(model: str = "m", stream: bool = False, content: str = "hello", **fields: Any) -> bytes:
    """The body of a chat request."""
    document: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
    if stream:
        document["stream"] = True
    return json.dumps(document).encode()


def post_chat(
    model: str = "m", stream: bool = False, headers: Any = None, version: str = "1.1", **fields: Any
) -> bytes:
    """The bytes of a chat request."""
    given = dict(headers or {})
    given.setdefault("Content-Type", "application/json")
    return request("POST", "/v1/chat/completions", given, chat(model, stream, **fields), version)


JSON = {"Content-Type": "application/json"}

__all__ = [
    "JSON",
    "PATIENCE",
    "Client",
    "Message",
    "Running",
    "World",
    "chat",
    "eventually",
    "node_entry",
    "post_chat",
    "request",
]
