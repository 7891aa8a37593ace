"""The real command `steelyard serve`, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.real.engine import Engine, free_port

SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 30.0
"""Seconds within which what must happen has happened; the machine may be busy."""


def eventually(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return found


class Gateway:
    """A running gateway in front of engines."""

    def __init__(self, folder: Path, name: str, document: str) -> None:
        """`document` is its configuration (YAML) without the listeners and the access log."""
        self.port, self.admin_port = free_port(), free_port()
        self._access_log = folder / f"{name}.access.log"
        self._output = folder / f"{name}.log"
        configuration = folder / f"{name}.yaml"
        configuration.write_text(document)
        command = [sys.executable, "-m", "steelyard", "serve", "--config", str(configuration)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin_port}"]
        command += ["--access-log", str(self._access_log), "--shutdown-delay", "0s"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(SOURCE)}
            )

    @classmethod
    def before(cls, folder: Path, name: str, engines: dict[str, str], extra: str = "") -> Gateway:
        """A gateway before the engines at these URLs, each of which works on one request at a time."""
        nodes = [f"  - {{name: {node}, url: {url}, max_in_flight: 1}}" for node, url in engines.items()]
        return cls(folder, name, "\n".join(["telemetry: {interval: 500ms}", "nodes:", *nodes, extra, ""]))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def nodes(self) -> dict[str, dict[str, Any]]:
        """GET /api/nodes of the admin listener, by name."""
        answer = httpx.get(f"http://127.0.0.1:{self.admin_port}/api/nodes", timeout=10)
        assert answer.status_code == 200, answer.text
        return {node["name"]: node for node in answer.json()["nodes"]}

    def wait(self, *names: str) -> None:
        """Until these nodes are ready."""

        def ready() -> bool:
            assert self._process.poll() is None, f"the gateway ended:\n{self.said()}"
            try:
                nodes = self.nodes()
            except httpx.TransportError:
                return False
            return all(nodes[name]["state"] == "ready" for name in names)

        eventually(ready, f"{', '.join(names)} ready")

    def idle(self) -> bool:
        """Whether no node has a lease."""
        nodes = self.nodes().values()
        return not any(node["in_flight"] or any(node["reserved"].values()) for node in nodes)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        if not self._access_log.exists():
            return []
        whole, _, _ = self._access_log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def logged(self, request_id: str) -> dict[str, Any]:
        """The line of one request, which is written a moment after its end."""
        found: list[dict[str, Any]] = eventually(
            lambda: [line for line in self.log() if line["id"] == request_id], f"a log line of {request_id}"
        )
        assert len(found) == 1
        return found[0]

    def said(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the gateway does not end:\n{self.said()}") from None


def urls(*engines: Engine) -> dict[str, str]:
    """Names and addresses for `Gateway.before`."""
    return {engine.name: engine.url for engine in engines}
