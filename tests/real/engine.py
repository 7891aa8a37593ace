"""A real llama.cpp server with real weights, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from tests.real import prepare

MODEL = "gemma"
CONTEXT = 2048
"""Tokens of prompt and answer together."""
READY_SECONDS = 120.0
"""For loading 250 MB of weights on a machine that has other work."""


def free_port() -> int:
    """A port of the loopback that nobody uses just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Engine:
    """One server. It can be killed and started again at the same address."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.port = free_port()
        self.output = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; `wait` says when it serves."""
        assert not self.alive
        command = [str(prepare.python()), "-m", "llama_cpp.server"]
        options = {
            "model": prepare.weights(),
            "model_alias": MODEL,
            "host": "127.0.0.1",
            "port": self.port,
            "n_ctx": CONTEXT,
            # One thread each: two servers, the gateway and the tests share what may be two cores.
            "n_threads": 1,
            "n_threads_batch": 1,
            # Its default ends a running stream, as if it were complete, as soon as another request comes.
            "interrupt_requests": "false",
        }
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        # The server takes every setting from a variable of that name too, and PORT and HOST before its options.
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                if httpx.get(f"{self.url}/v1/models", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.alive, f"{self.name} ended by itself:\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.name} does not answer:\n{self.said()}"
            time.sleep(0.1)

    def said(self) -> str:
        """The end of what it wrote."""
        return self.output.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """As a crash: no word to its clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Its connections stay, and nothing comes any more."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
