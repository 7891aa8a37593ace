"""Starts the back ends: nginx for plain answers, `bench.event_node` for streams and big bodies."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import payloads
from bench.processes import LOOPBACK, Process, StartError, free_port
from bench.proxies import REPOSITORY, nginx_command, nginx_config


@contextlib.contextmanager
def plain_nodes(folder: Path) -> Iterator[tuple[int, int]]:
    """Two ports that answer every POST with 1 KB of JSON: one nginx worker, or our own node where it is missing."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("nginx", path=search)
    if program is None:
        with event_nodes(folder) as ports:
            yield ports
        return
    ports = (free_port(), free_port())
    answer, models = payloads.chat_answer().decode(), payloads.models_answer().decode()
    server = (
        "  server {{\n    listen 127.0.0.1:{port} backlog=4096; default_type application/json;\n"
        "    keepalive_requests 1000000000; keepalive_timeout 1h;\n"
        "    location = /v1/models {{ return 200 '{models}'; }}\n"
        "    location = /health {{ return 200 '{{}}'; }}\n"
        "    location = /v1/chat/completions {{ return 200 '{answer}'; }}\n"
        "    location / {{ return 404; }}\n  }}"
    )
    http = "\n".join(server.format(port=port, answer=answer, models=models) for port in ports)
    command = nginx_command(program, folder, "node", nginx_config(http, 4096, "off"))
    with Process("node", command, folder) as process:
        yield _ready(process, ports)


@contextlib.contextmanager
def event_nodes(
    folder: Path, *, events: int = 100, gap_ms: float = 8.0, hold: bool = False
) -> Iterator[tuple[int, int]]:
    """Two ports of one `bench.event_node` process."""
    ports = (free_port(), free_port())
    command = [sys.executable, "-m", "bench.event_node", f"--ports={ports[0]},{ports[1]}"]
    command += [f"--events={events}", f"--gap-ms={gap_ms}", *(["--hold"] if hold else [])]
    with Process("node", command, folder, {"PYTHONPATH": str(REPOSITORY)}) as process:
        yield _ready(process, ports)


def _ready(process: Process, ports: tuple[int, int]) -> tuple[int, int]:
    from bench.load import wait_until_answered

    for port in ports:
        if not wait_until_answered(port, payloads.http_request(port, payloads.chat_body()), process.check):
            raise StartError(f"the back end on {LOOPBACK}:{port} does not answer: {process.last_words()}")
    return ports
