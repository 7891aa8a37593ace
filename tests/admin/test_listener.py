"""The admin listener over real sockets: it starts, serves, and closes whatever its clients do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from steelyard.admin.listener import AdminListener
from steelyard.admin.server import CONNECTIONS, Server
from steelyard.config.errors import ConfigError
from steelyard.service import Service

from .building import CHAT, FakeNode, admin_client, data_client, run, running, still_service, until


def test_a_request_a_scrape_a_drain_and_back() -> None:
    async def scene() -> None:
        async with (
            running(FakeNode(), FakeNode()) as service,
            admin_client(service) as admin,
            data_client(service) as data,
        ):
            await until(lambda: all(n.state == "ready" for n in service.gateway.balancer.fleet.nodes.values()))
            assert (await data.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert (await admin.get("/ready")).json()["nodes"] == {"ready": 2}
            text = (await admin.get("/metrics")).text
            found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
            assert found["steelyard_prompt_tokens_total"] == 7
            assert (await admin.post("/api/nodes/n0/drain")).json()["node"]["state"] == "draining"
            for _ in range(6):
                answer = await data.post("/v1/chat/completions", json=CHAT)
                assert answer.headers["x-steelyard-node"] == "n1"
            assert (await admin.post("/api/nodes/n0/undrain")).status_code == 200
            node = service.gateway.balancer.fleet.nodes["n0"]
            await until(lambda: node.state == "ready")

    run(scene())


def test_a_request_under_way_is_finished_while_its_node_drains() -> None:
    async def scene() -> None:
        async with (
            running(FakeNode(lambda path: None)) as service,
            admin_client(service) as admin,
            data_client(service) as data,
        ):
            request = asyncio.create_task(data.post("/v1/chat/completions", json=CHAT))
            await until(lambda: service.gateway.balancer.ledger.live == 1)
            assert (await admin.post("/api/nodes/n0/drain")).json()["node"]["in_flight"] == 1
            await asyncio.sleep(0.5)
            assert not request.done()
            request.cancel()
            await until(lambda: service.gateway.balancer.ledger.live == 0)
            assert [n["state"] for n in (await admin.get("/api/nodes")).json()["nodes"]] == ["draining"]

    run(scene())


def test_keep_alive_and_pipelining() -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.admin_port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
            seen = b""
            while seen.count(b'{"status":"ok"}') < 3:
                seen += await reader.read(65536)
            assert seen.count(b"HTTP/1.1 200 OK") == 3
            assert b"uvicorn" not in seen.lower()
            writer.close()

    run(scene())


def server_of(service: Service) -> Server:
    assert service._admin is not None
    assert service._admin._server is not None
    return service._admin._server


async def half_a_head(port: int) -> Any:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHos")
    return writer


async def half_a_body(port: int) -> Any:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    return writer


async def idle(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"}")
    return writer


async def silent(port: int) -> Any:
    return (await asyncio.open_connection("127.0.0.1", port))[1]


async def never_reads(port: int) -> Any:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
    return sock


@pytest.mark.parametrize("client", [silent, idle, half_a_head, half_a_body, never_reads])
def test_closing_waits_for_nobody_and_leaves_nothing(client: Any) -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service:
            async with admin_client(service) as other:
                await other.get("/health")
            server = server_of(service)
            left = await client(service.admin_port)
            await until(lambda: len(server.connections) >= 1)
            await asyncio.sleep(0.2)
            port = service.admin_port
            began = time.monotonic()
            await service.stop()
            assert time.monotonic() - began < 15
            await until(lambda: not server.connections)
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection("127.0.0.1", port)
            left.close()
        # `running` looks for tasks that are left.

    run(scene())


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_closing_while_it_is_still_loading(pause: float) -> None:
    async def scene() -> None:
        before = asyncio.all_tasks()
        listener = AdminListener(still_service())
        await listener.start("127.0.0.1", 0)
        port = listener.port
        await asyncio.sleep(pause)
        await listener.close()
        await listener.close()  # a second time does nothing
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", port)
        assert asyncio.all_tasks() - before == set()

    run(scene())


def test_an_address_in_use_is_an_os_error() -> None:
    async def scene() -> None:
        taken = AdminListener(still_service())
        await taken.start("127.0.0.1", 0)
        with pytest.raises(OSError, match="in use"):
            await AdminListener(still_service()).start("127.0.0.1", taken.port)
        with pytest.raises(OSError, match="assign"):
            await AdminListener(still_service()).start("192.0.2.1", 0)
        await taken.close()

    os.environ["STEELYARD_ADMIN_TOKEN"] = "t"
    try:
        run(scene())
    finally:
        del os.environ["STEELYARD_ADMIN_TOKEN"]


def test_off_loopback_without_a_token_nothing_is_opened() -> None:
    async def scene() -> None:
        listener = AdminListener(still_service())
        with pytest.raises(ConfigError, match="STEELYARD_ADMIN_TOKEN"):
            await listener.start("0.0.0.0", 0)
        assert listener._socket is None
        await listener.close()

    run(scene())


def test_ipv6_loopback() -> None:
    async def scene() -> None:
        listener = AdminListener(still_service())
        try:
            await listener.start("::1", 0)
        except OSError:
            pytest.skip("there is no IPv6 here")
        async with httpx.AsyncClient(timeout=20) as client:
            assert (await client.get(f"http://[::1]:{listener.port}/api/version")).status_code == 200
        await listener.close()

    run(scene())


def test_the_address_that_was_called_is_a_right_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_ADMIN_TOKEN", "t")

    async def scene() -> None:
        listener = AdminListener(still_service())
        await listener.start("0.0.0.0", 0)
        url = f"http://127.0.0.1:{listener.port}/api/version"
        token = {"authorization": "Bearer t"}
        async with httpx.AsyncClient(timeout=20) as client:
            assert (await client.get(url)).status_code == 401
            assert (await client.get(url, headers=token)).status_code == 200
            assert (await client.get(url, headers=token | {"host": "evil.example"})).status_code == 403
        await listener.close()

    run(scene())


def test_more_connections_than_there_may_be_do_not_take_its_descriptors() -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service:
            async with admin_client(service) as admin:
                await admin.get("/health")
            opened = [await asyncio.open_connection("127.0.0.1", service.admin_port) for _ in range(CONNECTIONS + 30)]
            server = server_of(service)
            await until(lambda: len(server.connections) == CONNECTIONS)
            await asyncio.sleep(0.3)
            assert len(server.connections) == CONNECTIONS
            for _, writer in opened:
                writer.close()
            await until(lambda: not server.connections)
            async with admin_client(service) as admin:
                assert (await admin.get("/health")).status_code == 200

    run(scene())


@pytest.mark.parametrize("client", [silent, half_a_head, half_a_body, never_reads])
def test_who_takes_too_long_is_cut(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service, admin_client(service) as admin:
            await admin.get("/health")
            server = server_of(service)
            stalled = await client(service.admin_port)
            await until(lambda: len(server.connections) == 2)
            await asyncio.sleep(1.2)  # a tick of the limit as it is cuts nobody
            assert len(server.connections) == 2
            monkeypatch.setattr("steelyard.admin.server.KEEP_ALIVE_SECONDS", 1)
            await until(lambda: not server.connections)
            stalled.close()
            assert (await admin.get("/health")).status_code == 200

    run(scene())


def test_it_says_nothing_and_takes_no_signal(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        listener = AdminListener(still_service())
        await listener.start("127.0.0.1", 0)
        async with httpx.AsyncClient(timeout=20) as client:
            await client.get(f"http://127.0.0.1:{listener.port}/health")
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"this is no HTTP\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()
        await listener.close()

    with caplog.at_level(logging.INFO):
        run(scene())
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
    assert "vicorn" not in "".join(capfd.readouterr())


def test_a_gateway_goes_on_without_its_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(service: Service, access: object) -> Any:
        raise ImportError("fastapi is not there")

    monkeypatch.setattr("steelyard.admin.listener.load", broken)

    async def scene() -> None:
        async with running(FakeNode()) as service, data_client(service) as data:
            await asyncio.sleep(0.1)
            assert (await data.post("/v1/chat/completions", json=CHAT)).status_code == 200

    run(scene())


def test_serve_refuses_an_open_admin_with_one_line_and_code_2() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEELYARD_")}
    command = [sys.executable, "-m", "steelyard", "serve", "--node", "http://127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "STEELYARD_ADMIN_TOKEN" in line
    assert done.stdout == ""
