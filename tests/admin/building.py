"""Services for the tests of the admin: still ones (no sockets, the clock stands), and running ones with nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI

from steelyard.config.build import node_specs, settings
from steelyard.config.document import parse_document
from steelyard.config.load import validate
from steelyard.config.schema import Config
from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event, Node
from steelyard.core.queue import Ticket
from steelyard.core.refusal import Refusal
from steelyard.core.work import Work
from steelyard.proxy.access_log import AccessLog
from steelyard.proxy.gateway import Gateway
from steelyard.service import Service
from steelyard.telemetry.health import HealthChecks

GB = 10**9
BASE = "http://127.0.0.1:9901"
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}


def validated(document: dict[str, Any]) -> Config:
    """The configuration that a document describes. JSON is YAML."""
    return validate(parse_document(json.dumps(document, ensure_ascii=False), "test", {}), "test")


def config_of(**document: Any) -> Config:
    """A configuration; a number of nodes stands for so many of one kind."""
    nodes = document.get("nodes", 2)
    if isinstance(nodes, int):
        document["nodes"] = [
            {"name": f"n{i}", "url": f"http://10.0.0.{i // 250}:{8000 + i}", "engine": "vllm", "models": ["llama"]}
            for i in range(nodes)
        ]
    return validated(document)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def still_service(ready: bool = True, **document: Any) -> Service:
    """A service that was not started: everything is there but sockets and tasks."""
    config = config_of(**document)
    service = Service(config)
    clock = Clock()
    balancer = Balancer(Fleet(config.aliases), Random(1))
    loop = asyncio.new_event_loop()
    loop.close()
    service.gateway = Gateway(balancer, settings(config), AccessLog(None), loop, clock)
    service.health = HealthChecks(service.gateway, 1.0)
    for spec in node_specs(config):
        node = balancer.fleet.add(spec)
        if ready:
            make_ready(service, node)
    return service


def make_ready(service: Service, node: Node) -> None:
    service.gateway.node_event(node, Event.REACHED)
    service.gateway.node_event(node, Event.WARMED)


def clock_of(service: Service) -> Clock:
    clock = service.gateway.clock
    assert isinstance(clock, Clock)
    return clock


class Waiting:
    def placed(self, placement: object) -> None:
        pass

    def refused(self, refusal: Refusal) -> None:
        pass


def admit(service: Service, work: Work | None = None, waiter: Waiting | None = None) -> Any:
    """Place, line up, or refuse a request on the first route."""
    gateway = service.gateway
    work = work or Work("openai", "chat", "llama", prompt_tokens=10)
    return gateway.balancer.admit(work, gateway.settings.routes[0], gateway.clock(), waiter)


def line_up(service: Service, work: Work | None = None) -> Ticket:
    ticket = admit(service, work, Waiting())
    assert isinstance(ticket, Ticket), ticket
    return ticket


def ask(app: FastAPI, method: str, path: str, **rest: Any) -> httpx.Response:
    """One request to an app, in this process."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=rest.pop("base", BASE)) as client:
            return await client.request(method, path, **rest)

    return asyncio.run(send())


# -- running


class FakeNode:
    """A small inference server. It answers what `answer(path)` says; None: it stays silent."""

    def __init__(self, answer: Callable[[str], bytes | None] | None = None) -> None:
        self._answer = answer or (lambda path: b'{"id":"x","usage":{"prompt_tokens":7,"completion_tokens":5}}')
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[str] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                length = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
                if length:
                    await reader.readexactly(length[0])
                path = lines[0].split(" ")[1]
                body: bytes | None = b"{}"
                if path == "/v1/models":
                    body = b'{"object":"list","data":[{"id":"llama","owned_by":"vllm"}]}'
                elif path != "/health":
                    self.requests.append(path)
                    body = self._answer(path)
                if body is None:
                    await asyncio.sleep(3600)
                    return
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                writer.write(head + body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


@asynccontextmanager
async def running(*nodes: FakeNode, **document: Any) -> AsyncIterator[Service]:
    """A service in front of nodes, ready, on free ports; n0, n1, ... are their names. Leaves no task behind."""
    before = asyncio.all_tasks()
    urls = [await node.start() for node in nodes]
    document.setdefault("nodes", [{"name": f"n{i}", "url": url} for i, url in enumerate(urls)])
    service = Service(
        validated(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "access_log": "off",
                "telemetry": {"interval": "50ms"},
                **document,
            }
        )
    )
    await service.start()
    try:
        if nodes:
            assert await service.wait_ready(20)
        yield service
    finally:
        await service.stop()
        for node in nodes:
            await node.close()
    left = [task for task in asyncio.all_tasks() - before if not task.done()]
    assert left == [], left


def admin_client(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.admin_port}", timeout=20)


def data_client(service: Service) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=20)


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 45))


async def until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came"
        await asyncio.sleep(0.01)
