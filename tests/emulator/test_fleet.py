"""Many nodes in one process, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from steelyard.cli.main import app
from steelyard.emulator import EmulatedFleet, EmulatorError, NodeProfile, uniform
from steelyard.emulator.fleet import raise_descriptor_limit
from tests.emulator.scenes import new_client


def free_ports(count: int) -> int:
    """The first of ``count`` ports that are free one after the other."""
    for first in range(20_000 + os.getpid() % 9_000, 60_000, count):
        taken = []
        try:
            taken.extend(socket.create_server(("127.0.0.1", port)) for port in range(first, first + count))
        except OSError:
            continue
        finally:
            for each in taken:
                each.close()
        return first
    raise AssertionError("no free ports")


def test_node_i_listens_on_port_plus_i_under_its_own_name(run: Any) -> None:
    async def scene() -> None:
        first = free_ports(3)
        async with EmulatedFleet(uniform(3, NodeProfile(kind="llm")), port=first) as fleet:
            assert [(node.name, node.port) for node in fleet.nodes] == [
                ("gpu-1", first),
                ("gpu-2", first + 1),
                ("gpu-3", first + 2),
            ]
            async with new_client() as client:
                names = [(await client.get(f"{node.url}/health")).headers["x-emulated-node"] for node in fleet.nodes]
            assert names == ["gpu-1", "gpu-2", "gpu-3"]

    run(scene())


def test_nodes_join_and_leave(run: Any) -> None:
    async def scene() -> None:
        async with EmulatedFleet([NodeProfile()]) as fleet, new_client() as client:
            node = await fleet.add(NodeProfile(name="late"))
            assert (await client.get(f"{node.url}/internal/ping")).status_code == 200
            await fleet.remove("late")
            assert fleet.find("late") is None
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{node.url}/internal/ping")
            with pytest.raises(KeyError):
                await fleet.remove("late")
            with pytest.raises(EmulatorError, match="two nodes are named 'gpu-1'"):
                await fleet.add(NodeProfile(name="gpu-1"))

    run(scene())


def test_a_taken_port_is_named_and_no_node_is_left(run: Any) -> None:
    async def scene() -> None:
        first = free_ports(2)
        with socket.create_server(("127.0.0.1", first + 1)):
            fleet = EmulatedFleet(uniform(2, NodeProfile()), port=first)
            with pytest.raises(EmulatorError, match=rf"port {first + 1} of 127\.0\.0\.1 is in use \(node gpu-2\)"):
                await fleet.start()
            assert fleet.nodes == []
        with socket.create_server(("127.0.0.1", first)):
            pass  # the first node's port is free again

    run(scene())


def test_close_leaves_no_task_and_no_connection(run_on_both: Any) -> None:
    async def scene() -> None:
        before = asyncio.all_tasks()
        fleet = EmulatedFleet(uniform(2, NodeProfile(kind="llm")), time_scale=10.0)
        await fleet.start()
        node = fleet.nodes[0]
        reader, writer = await asyncio.open_connection(node.host, node.port)
        body = b'{"prompt": "x", "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b"\r\n\r\n")
        await fleet.close()
        assert await asyncio.wait_for(reader.read(-1), 5) == b""
        assert not node.connections
        assert (node.stats.open, node.stats.failed, node.engine.load()["running"]) == (0, 1, 0)
        assert asyncio.all_tasks() == before
        writer.close()

    run_on_both(scene())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NodeProfile(kind="gpu"), "unknown kind 'gpu'; known: sd, llm, whisper, classify"),  # type: ignore[arg-type]
        (lambda: NodeProfile(gpu_memory=0), "gpu memory must be above 0"),
        (lambda: NodeProfile(speed=0), "speed must be above 0"),
        (lambda: NodeProfile(concurrency=0), "concurrency of a node is too small: 0"),
        (lambda: uniform(0, NodeProfile()), "at least 1 node"),
        (lambda: uniform(3, NodeProfile(), [1, 2]), "2 speeds for 3 nodes"),
        (lambda: EmulatedFleet([], time_scale=0), "time scale must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises(EmulatorError) as raised:
        make()
    assert says in str(raised.value)


def test_speeds_go_to_the_nodes_in_order() -> None:
    assert [each.speed for each in uniform(2, NodeProfile(), [1.0, 0.5])] == [1.0, 0.5]
    assert [each.speed for each in uniform(2, NodeProfile(), [2.0])] == [2.0, 2.0]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "steelyard", "emulate", *arguments]


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    raise_descriptor_limit()
    process = subprocess.Popen(
        command("--nodes", "2", "--kind", "sd", "--gpu-memory", "24GiB", "--port", "0", "--model", "a", "--json"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        nodes = json.loads(process.stdout.readline())["nodes"]
        assert [(node["name"], node["gpu_memory"], node["engine"], node["models"]) for node in nodes] == [
            ("gpu-1", 24 * 1024**3, "sdwebui", ["a"]),
            ("gpu-2", 24 * 1024**3, "sdwebui", ["a"]),
        ]
        answer = httpx.get(nodes[1]["url"] + "/sdapi/v1/sd-models", trust_env=False)
        assert (answer.headers["x-emulated-node"], answer.json()[0]["model_name"]) == ("gpu-2", "a")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu-memory", "24GX"], "'24GX' is not a size; write e.g. 24GB or 24GiB"),
        (["--kind", "gpu"], "unknown kind 'gpu'; known: sd, llm, whisper, classify"),
        (["--port", "70000"], "port must be from 0 to 65535, not 70000"),
        (["--port", "65535", "--nodes", "2"], "node gpu-2 would need port 65536"),
        (["--nodes", "0"], "at least 1 node"),
        (["--kind", "llm", "--gpu-memory", "8GB", "--port", "0"], "leaves no room for its KV cache"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1"),
    ],
)
def test_bad_arguments_get_one_clear_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["emulate", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_gets_one_clear_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(command("--port", str(port)), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert done.stderr.count("\n") == 1
