"""The real gateway in a process of its own, as `steelyard serve` runs it, for as long as its parent wants it.

The child says on stdout which ports it got. It ends gracefully when its standard input ends, so it also ends when the
parent was killed and could not say goodbye.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

import steelyard
from steelyard.config.errors import ConfigError
from steelyard.config.load import load
from steelyard.service import AddressInUse, CannotStart, Service
from steelyard.sim.http_client import HttpClient, Request
from steelyard.sim.loop import run_loop

START_SECONDS = 30.0
"""A cold start is under two seconds; a machine that is busy takes longer."""
END_SECONDS = 15.0
POLL_SECONDS = 0.05
ADMIN_SECONDS = 5.0
"""For one question to the admin API."""
LOG_LINES = 5
"""Of the gateway's own log, when it does not start."""


class GatewayError(Exception):
    """The gateway did not start, or does not answer; the text is one clear line."""


class GatewayAddressInUse(GatewayError):
    """A port that the configuration names cannot be had."""


class GatewayProcess:
    """A gateway with `config` (shaped like the YAML file). Its files are in `directory`.

    Use as ``async with GatewayProcess(...) as gateway``.
    """

    def __init__(self, config: Mapping[str, Any], directory: Path) -> None:
        self.directory = directory
        self.access_log = directory / "access.jsonl"
        self.log = directory / "gateway.log"
        self.port = 0
        self.admin_port = 0
        self.exit_code: int | None = None
        self._config = {"access_log": str(self.access_log), **config}
        self._process: asyncio.subprocess.Process | None = None
        self._admin: HttpClient | None = None

    async def start(self) -> None:
        """Start it. Raises GatewayError, or GatewayAddressInUse, with the gateway's own words when it cannot."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "steelyard.yaml"
        file.write_text(json.dumps(self._config, indent=2) + "\n")  # JSON is YAML
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEELYARD_")}
        source = str(Path(steelyard.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                str(file),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                # Ctrl-C in the terminal is for the parent; the child ends when the load has ended.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        except asyncio.CancelledError:
            await self.stop()
            raise
        if not line:
            await self.stop()
            raise GatewayError(f"the gateway did not start: {self._last_words()}")
        said = json.loads(line)
        if "error" in said:
            await self.stop()
            raise (GatewayAddressInUse if said["address"] else GatewayError)(said["error"])
        self.port, self.admin_port = said["port"], said["admin_port"]
        self._admin = HttpClient("127.0.0.1", self.admin_port, time.monotonic)

    async def stop(self) -> int:
        """End it gracefully, or by force when it does not; the exit code. Idempotent."""
        if self._admin is not None:
            await self._admin.close()
            self._admin = None
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
            self.exit_code = await process.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def ask(self, path: str) -> Any:
        """What the admin API answers to GET `path`. Raises GatewayError."""
        if self._admin is None:
            raise GatewayError("the gateway is not running")
        try:
            answer = await self._admin.fetch(Request("GET", path), ADMIN_SECONDS)
        except OSError as error:
            raise GatewayError(f"{error}; {self._last_words()}") from None
        return json.loads(answer.body)

    async def wait_for_nodes(self, count: int, timeout: float = START_SECONDS) -> None:
        """Wait until `count` nodes are ready. Raises GatewayError when they are not in time."""
        deadline = time.monotonic() + timeout
        while (states := (await self.ask("/ready"))["nodes"]).get("ready", 0) < count:
            if time.monotonic() > deadline:
                raise GatewayError(f"of {count} nodes not all are ready after {timeout:g} s: {states}")
            await asyncio.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " | ".join(text.splitlines()[-LOG_LINES:]) or f"it said nothing ({self.log})"

    async def __aenter__(self) -> GatewayProcess:
        if self._process is None:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def serve_until_told(file: str) -> int:
    """The child's life: serve, and drain when the parent or a signal says so. The exit code."""
    # stdout is for the ports.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr), cache_logger_on_first_use=False)
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        service = Service(load(file, environ={}))
        await service.start()
    except (CannotStart, ConfigError) as error:
        print(json.dumps({"error": str(error), "address": isinstance(error, AddressInUse)}), flush=True)
        return 2
    print(json.dumps({"port": service.port, "admin_port": service.admin_port}), flush=True)
    loop.add_reader(sys.stdin.fileno(), told.set)
    await told.wait()
    loop.remove_reader(sys.stdin.fileno())
    return 0 if await service.drain(0.0) else 1


if __name__ == "__main__":
    sys.exit(run_loop(serve_until_told(sys.argv[1])))
