"""Requests of the Anthropic Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steelyard.core.work import Work
from steelyard.dialects import MalformedBody, recognise

OPERATION = recognise("POST", "/v1/messages")


def read(body: dict[str, Any]) -> Work:
    return OPERATION.read(json.dumps(body).encode(), b"application/json", b"/v1/messages")


def test_a_message_request() -> None:
    work = read(
        {
            "model": "m",
            "max_tokens": 50,
            "system": "s" * 38,
            "messages": [{"role": "user", "content": "x"}],
            "stream": True,
            "metadata": {"user_id": "u", "other": 1},
        }
    )
    assert (work.dialect, work.operation, work.model) == ("anthropic", "messages", "m")
    assert (work.stream, work.max_tokens, work.repeatable) == (True, 50, True)
    assert work.prompt_tokens == 10 + 9
    assert dict(work.session_fields) == {"user": "u"}


def test_absent_fields() -> None:
    work = read({})
    assert (work.model, work.stream, work.max_tokens, work.prompt_tokens) == (None, False, 0, 0)
    assert dict(read({"metadata": {}}).session_fields) == {}
    assert dict(read({"metadata": None}).session_fields) == {}


def test_the_wrong_type_of_a_nested_field_is_named() -> None:
    with pytest.raises(MalformedBody, match=r"^metadata\.user_id must be a string, not an integer$"):
        read({"metadata": {"user_id": 5}})


def test_the_prompt_is_the_sum_of_three_counts() -> None:
    answer = {
        "usage": {
            "input_tokens": 5,
            "output_tokens": 7,
            "cache_creation_input_tokens": 10,
            "cache_read_input_tokens": 100,
        }
    }
    usage = OPERATION.usage(json.dumps(answer).encode())
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (115, 7, 100)
    assert OPERATION.usage(b"{}") is None
    assert OPERATION.usage(b"<html>") is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (499, "invalid_request_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    for path in ("/v1/messages", "/v1/messages/batches"):
        assert json.loads(recognise("POST", path).error(status, "c", "m", "r1")) == {
            "type": "error",
            "error": {"type": kind, "message": "m", "code": "c"},
            "request_id": "r1",
        }


def test_an_error_in_a_stream_is_one_event_of_the_type_error() -> None:
    for path in ("/v1/messages", "/v1/messages/batches"):
        event = recognise("POST", path).stream_error("node_broke", "gone")
        head, data = event.removesuffix(b"\n\n").split(b"\n")
        assert head == b"event: error"
        assert json.loads(data.removeprefix(b"data: "))["error"]["type"] == "api_error"
