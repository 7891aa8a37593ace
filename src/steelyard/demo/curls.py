"""What to try while the demo is up: lines to paste into a shell."""

from __future__ import annotations

import json
import shlex
from typing import Any

from steelyard.demo.traffic import IMAGE_MODEL, LANGUAGE_MODEL


def lines(port: int, admin_port: int) -> list[tuple[str, str]]:
    """(what it does, the command), in the order to try them."""
    gateway, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    ask: dict[str, Any] = {
        "model": LANGUAGE_MODEL,
        "messages": [{"role": "user", "content": "What is a steelyard?"}],
        "max_tokens": 40,
    }
    picture = {"model": IMAGE_MODEL, "prompt": "a steelyard", "size": "1024x1024"}
    return [
        ("chat", _post(f"{gateway}/v1/chat/completions", ask)),
        ("chat, streamed", _post(f"{gateway}/v1/chat/completions", {**ask, "stream": True}, "-sN")),
        ("an image, and on which node it was made", _post(f"{gateway}/v1/images/generations", picture, "-si")),
        ("the models of all nodes", f"curl -s {gateway}/v1/models"),
        ("the nodes, as the gateway sees them", f"curl -s {admin}/api/nodes"),
        ("metrics for Prometheus", f"curl -s {admin}/metrics"),
        (
            "where would this image go, and why?",
            _post(f"{admin}/api/explain", {"path": "/v1/images/generations", "body": picture}),
        ),
    ]


def _post(url: str, body: dict[str, Any], flags: str = "-s") -> str:
    return f"curl {flags} {url} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
