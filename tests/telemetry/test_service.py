"""A whole gateway: how it starts, what a reload changes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog

from steelyard.config.schema import Config
from steelyard.core.node import State
from steelyard.service import AddressInUse, CannotStart, Service
from tests.admin.building import CHAT, FakeNode, admin_client, data_client, run, running, until, validated

OPEN: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    "access_log": "off",
    "telemetry": {"interval": "50ms"},
}


def changed(service: Service, **document: Any) -> Config:
    """The configuration of `running`, with changes."""
    nodes = [{"name": node.name, "url": node.url} for node in service.config.nodes]
    return validated({**OPEN, "nodes": nodes, **document})


def only(service: Service, **fields: Any) -> list[dict[str, Any]]:
    (node,) = service.config.nodes
    return [{"name": node.name, "url": node.url, **fields}]


@pytest.mark.parametrize("place", ["no-such-directory/log", "."])
def test_an_access_log_that_cannot_be_written_is_said_in_one_line(tmp_path: Path, place: str) -> None:
    async def scene() -> None:
        service = Service(validated({**OPEN, "access_log": str(tmp_path / place), "nodes": [{"url": "http://a"}]}))
        with pytest.raises(CannotStart, match=r"cannot write the access log '.*': (no such file|is a directory)"):
            await service.start()

    run(scene())


def test_a_pipe_that_nobody_reads_does_not_make_the_start_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    async def scene() -> None:
        service = Service(validated({**OPEN, "access_log": str(tmp_path / "pipe"), "nodes": [{"url": "http://a"}]}))
        with pytest.raises(CannotStart, match="cannot write the access log"):
            await service.start()

    run(scene())


@pytest.mark.parametrize("key", ["listen", "admin"])
def test_an_address_that_cannot_be_had_is_said_in_the_words_of_the_system(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEELYARD_ADMIN_TOKEN", "x")

    async def scene() -> None:
        service = Service(validated({**OPEN, key: "no-such-host.invalid:8080", "nodes": [{"url": "http://a"}]}))
        with pytest.raises(AddressInUse) as raised:
            await service.start()
        message = str(raised.value)
        assert message.startswith("cannot listen on no-such-host.invalid:8080")
        assert "unknown error" not in message
        assert message.count("\n") == 0
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            service = Service(validated({**OPEN, key: f"127.0.0.1:{port}", "nodes": [{"url": "http://a"}]}))
            with pytest.raises(AddressInUse, match=f"cannot listen on 127.0.0.1:{port}.*address already in use"):
                await service.start()

    run(scene())


def test_a_reload_that_changes_an_alias_counts_for_the_next_request() -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service, data_client(service) as client:
            body = {**CHAT, "model": "nick"}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 404
            service.reload(changed(service, aliases={"nick": "llama"}))
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            names = {card["id"] for card in (await client.get("/v1/models")).json()["data"]}
            assert names == {"llama", "nick"}
            service.reload(changed(service))
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 404

    run(scene())


def test_a_route_that_vanishes_lets_its_requests_end_those_that_wait_too() -> None:
    """One of them computes, the other waits for the only place."""

    async def scene() -> None:
        async with running(FakeNode(hold := Hold())) as service, data_client(service) as client:
            routes = [{"name": "old", "match": {"path": "/v1/*"}}]
            service.reload(changed(service, routes=routes, nodes=only(service, max_in_flight=1)))
            first = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            await until(lambda: hold.begun == 1)
            second = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
            await until(lambda: service.gateway.balancer.queue.length == 1)
            service.reload(changed(service, routes=[{"name": "new"}], nodes=only(service, max_in_flight=1)))
            assert service.gateway.balancer.queue.length == 1
            first.cancel()
            hold.silent = False
            assert (await second).status_code == 200
            third = await client.post("/v1/chat/completions", json=CHAT)
            assert third.status_code == 200
            assert service.gateway.balancer.ledger.live == 0

    run(scene())


class Hold:
    """The first request gets no answer; those after `silent` is taken away do."""

    def __init__(self) -> None:
        self.begun = 0
        self.silent = True

    def __call__(self, path: str) -> bytes | None:
        self.begun += 1
        return None if self.silent else b"{}"


def test_what_needs_a_restart_is_said_at_every_reload_and_what_holds_is_told() -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service:
            wanted = {"listen": "127.0.0.1:1", "admin": "127.0.0.1:2", "access_log": "stdout"}
            for _ in range(2):
                with structlog.testing.capture_logs() as said:
                    service.reload(changed(service, **wanted))
                warned = {entry["key"]: entry["still"] for entry in said if entry["log_level"] == "warning"}
                assert warned == {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "access_log": "off"}
                assert (str(service.config.listen), service.config.access_log) == ("127.0.0.1:0", "off")
            with structlog.testing.capture_logs() as said:
                service.reload(changed(service))
            assert [entry for entry in said if entry["log_level"] == "warning"] == []

    run(scene())


def test_a_changed_version_is_in_the_next_answer() -> None:
    async def scene() -> None:
        async with running(FakeNode()) as service, data_client(service) as client:
            for version in ("v1", "v2"):
                service.reload(changed(service, nodes=only(service, version=version)))
                answer = await client.post("/v1/chat/completions", json=CHAT)
                assert answer.headers["x-steelyard-version"] == version
            service.reload(changed(service))
            answer = await client.post("/v1/chat/completions", json=CHAT)
            assert "x-steelyard-version" not in answer.headers

    run(scene())


def test_what_was_learned_of_a_node_holds_until_it_has_answered_again() -> None:
    async def scene() -> None:
        # The next check of its own accord would come in a minute.
        seldom = {"telemetry": {"interval": "60s"}}
        async with running(FakeNode(), **seldom) as service:
            (node,) = service.gateway.balancer.fleet.nodes.values()
            service.reload(changed(service, nodes=only(service, engine="vllm", models=["other"]), **seldom))
            assert (node.engine, node.models) == ("vllm", {"other"})
            # Both keys leave the file: not for one moment is everything asked of it.
            service.reload(changed(service, **seldom))
            assert (node.engine, node.models, node.state) == ("vllm", {"other"}, State.READY)
            await until(lambda: node.models == {"llama"})
            assert service.gateway.balancer.fleet.nodes[node.name] is node

    run(scene())


def test_a_reload_that_changes_nothing_asks_nothing_and_a_url_that_changes_makes_a_new_node() -> None:
    async def scene() -> None:
        async with running(FakeNode(), FakeNode()) as service:
            fleet = service.gateway.balancer.fleet
            first, second = fleet.nodes.values()
            generation = fleet.generation
            service.reload(changed(service))
            assert fleet.generation == generation
            nodes = [{"name": first.name, "url": second.spec.url}]
            service.reload(changed(service, nodes=nodes))
            assert first.leaving
            assert second.leaving
            fresh = fleet.nodes[first.name]
            assert fresh is not first
            await until(lambda: fresh.state is State.READY)
            await until(lambda: first.state is second.state is State.GONE)
            await until(lambda: set(service.health.health) == {fresh})

    run(scene())


def test_sessions_and_keys_are_in_no_answer_of_the_admin() -> None:
    async def scene() -> None:
        node = FakeNode()
        url = await node.start()
        document = {
            "nodes": [{"name": "n0", "url": url, "api_key": "node-s3cret"}],
            "auth": {"keys": [{"key": "client-s3cret", "tenant": "art"}]},
            "defaults": {"policy": "consistent-hash"},
        }
        service = Service(validated({**OPEN, **document}))
        await service.start()
        try:
            assert await service.wait_ready(20)
            headers = {"Authorization": "Bearer client-s3cret", "X-User-ID": "session-s3cret", "Cookie": "a=s3cret"}
            async with data_client(service) as client, admin_client(service) as admin:
                assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
                wrong = {**headers, "Authorization": "Bearer wrong-s3cret"}
                assert (await client.post("/v1/chat/completions", json=CHAT, headers=wrong)).status_code == 401
                explained = {"path": "/v1/chat/completions", "headers": headers, "body": CHAT}
                answers = [await admin.post("/api/explain", json=explained)]
                pages = ("nodes", "routes", "queue", "decisions", "version")
                answers += [await admin.get(f"/api/{page}") for page in pages]
                answers.append(await admin.get("/metrics"))
                for answer in answers:
                    assert answer.status_code == 200, answer.text
                    assert "s3cret" not in answer.text
                assert "art" in answers[4].text, "the decision is there"
        finally:
            await service.stop()
            await node.close()

    run(scene())
