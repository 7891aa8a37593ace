"""`steelyard demo` from outside."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import environment, interrupt, running, steelyard

FREE = ("--port", "0", "--admin-port", "0")


@pytest.fixture(autouse=True)
def temporary_files_go_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "0"], ["--seconds", "-1"], ["--seconds", "inf"], ["--seconds", "x"], ["--port", "65536"]],
)
def test_bad_input_is_exit_code_2(arguments: list[str]) -> None:
    done = steelyard("demo", "--once", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_once_answers_everything_and_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = steelyard("demo", "--once", "--seconds", "3", "--json", *FREE)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert summary["holds"]
    kinds = summary["kinds"]
    assert set(kinds) == {
        "chat (stream)",
        "image 512x512",
        "image 1024x1024",
        "transcription",
        "embeddings",
        "all",
    } or (
        set(kinds) > {"chat (stream)", "embeddings", "all"}  # three seconds may see no large image
    )
    assert kinds["all"]["requests"] == kinds["all"]["answered"] > 10
    assert sum(those["requests"] for kind, those in kinds.items() if kind != "all") == kinds["all"]["requests"]
    assert kinds["chat (stream)"]["first_token_p50"] < kinds["chat (stream)"]["latency_p50"]
    assert summary["tokens"] > 100
    assert [check["name"] for check in summary["audit"] if not check["holds"]] == []
    assert "the gateway ended gracefully" in [check["name"] for check in summary["audit"]]
    assert not summary.keys() & {"access_log", "try"}, "the gateway is down: there is nothing to look at"
    assert not list(tmp_path.iterdir()), "what all went well leaves nothing behind"


def test_ports_that_are_taken_are_replaced_and_it_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = steelyard("demo", "--once", "--seconds", "0.5", "--port", str(port), "--admin-port", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"port {port} is in use, taking " in done.stdout
    assert f"http://127.0.0.1:{port}" not in done.stdout
    assert "\x1b" not in done.stdout, "plain text where there is no terminal"
    assert "all requests were answered" in done.stdout


CHECKS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("chat", lambda text: json.loads(text)["object"] == "chat.completion"),
    ("chat, streamed", lambda text: text.startswith("data: {") and text.rstrip().endswith("data: [DONE]")),
    ("an image", lambda text: "x-steelyard-node: sd-" in text and '"b64_json"' in text),
    ("the models", lambda text: len(json.loads(text)["data"]) == 3),
    ("the nodes", lambda text: {node["state"] for node in json.loads(text)["nodes"]} == {"ready"}),
    ("metrics", lambda text: "steelyard_requests_total{" in text),
    ("where would", lambda text: _goes_to_an_image_node(json.loads(text))),
)


def _goes_to_an_image_node(answer: dict[str, Any]) -> bool:
    return answer["outcome"] == "placed" and answer["footprint"]["memory"] == 18 * 10**9


def test_it_stays_up_and_every_line_that_it_prints_works_when_pasted(need: Callable[[str], str]) -> None:
    need("curl")
    with running("demo", "--seconds", "1", "--json", *FREE) as process:
        assert process.stdout is not None
        summary = json.loads(process.stdout.readline())
        lines = summary["try"]
        assert len(lines) == len(CHECKS)
        for line, (what, check) in zip(lines, CHECKS, strict=True):
            assert line["what"].startswith(what)
            done = subprocess.run(
                ["bash", "-c", line["command"]],
                capture_output=True,
                text=True,
                timeout=30,
                env=environment(),
                check=True,
            )
            assert check(done.stdout), f"{line['command']}\n{done.stdout}"
        log = Path(summary["access_log"])
        assert log.read_text().count("\n") >= summary["kinds"]["all"]["requests"]
        code, _, err = interrupt(process)
    assert code == 0
    for line in lines:
        assert line["command"] in err, "people see the same lines"
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(number: signal.Signals) -> None:
    with running("demo", "--seconds", "60", *FREE) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("up in"):
            assert process.poll() is None
        code, out, err = interrupt(process, number)
    assert code == 130
    assert "ended: gateway and nodes were stopped" in out
    assert err == ""
