"""The real command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

from tests.blackbox.wire import Client
from tests.blackbox.world import World, eventually

SOURCE = Path(__file__).resolve().parents[2] / "src"


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Process:
    """A running `steelyard`."""

    def __init__(self, world: World, process: asyncio.subprocess.Process, errors: Path, port: int, admin: int) -> None:
        self._world = world
        self._process = process
        self._errors = errors
        self.port = port
        self.admin = admin

    @classmethod
    async def start(cls, world: World, path: Path, *arguments: str, files: int | None = None) -> Process:
        """Start `steelyard serve ...` on free ports and wait until a node is ready. `files` limits its descriptors."""
        port, admin = free_port(), free_port()
        errors = path / f"stderr-{port}.log"

        def limit() -> None:
            if files is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        listeners = ("--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}")
        with open(errors, "wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "steelyard",
                *arguments,
                *listeners,
                stderr=stderr,
                stdout=stderr,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                preexec_fn=limit,
            )
        started = cls(world, process, errors, port, admin)
        world.closing.append(started.kill)
        await eventually(lambda: b"node ready" in errors.read_bytes() or not started.alive, "it is ready", 40)
        assert started.alive, started.errors().decode()
        return started

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def errors(self) -> bytes:
        """What it wrote to stderr."""
        return self._errors.read_bytes()

    def log(self) -> list[dict[str, object]]:
        """The lines of its access log."""
        lines = [json.loads(line) for line in self.errors().splitlines()]
        return [line for line in lines if "outcome" in line]

    async def connect(self) -> Client:
        return await self._world.connect(self.port)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit(self, patience: float = 20) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self._process.wait(), patience)

    async def kill(self) -> None:
        if self.alive:
            self._process.kill()
            await self._process.wait()
