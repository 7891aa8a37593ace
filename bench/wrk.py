"""Runs wrk, the load generator for plain requests where it is installed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench import payloads
from bench.processes import LOOPBACK, StartError

_SCRIPT = """\
wrk.method = "POST"
wrk.body = [==[{body}]==]
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "*/*"
wrk.headers["Authorization"] = "Bearer sk-bench"
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('FIGURES {{"answers": %d, "microseconds": %d, "errors": %d}}\\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout))
end
"""
_FIGURES = re.compile(r"FIGURES (\{.*\})")


@dataclass(frozen=True)
class Answers:
    """What a plain load did: answers, errors among them, and seconds."""

    answers: int
    errors: int
    seconds: float


def find() -> str | None:
    """The path of wrk, or None."""
    return shutil.which("wrk")


async def run(program: str, port: int, seconds: float, connections: int, folder: Path) -> Answers:
    """`connections` keep-alive connections post the chat request for `seconds`, from one thread."""
    script = folder / "post.lua"
    if not script.exists():
        script.write_text(_SCRIPT.format(body=payloads.chat_body().decode()))
    url = f"http://{LOOPBACK}:{port}{payloads.CHAT_PATH}"
    command = [program, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(script), url]
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(child.communicate(), seconds + 30)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    found = _FIGURES.search(output.decode(errors="replace"))
    if found is None:
        raise StartError(f"wrk said: {output.decode(errors='replace')[-300:]}")
    figures = json.loads(found[1])
    return Answers(figures["answers"], figures["errors"], figures["microseconds"] / 1e6)
