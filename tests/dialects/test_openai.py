"""Requests of OpenAI's API: what they weigh."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core.cost import estimate
from steelyard.core.work import Work
from steelyard.dialects import MalformedBody, recognise

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello there"}]


def read(path: str, body: dict[str, Any] | bytes) -> Work:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return recognise("POST", path).read(raw, b"application/json", path.encode())


def scan(path: str, body: bytes, step: int) -> Work:
    scanner = recognise("POST", path).scanner()
    assert scanner is not None
    for start in range(0, len(body), step):
        scanner.feed(body[start : start + step])
    return scanner.work()


def attributes(work: Work) -> dict[str, object]:
    return {name: getattr(work, name) for name in dir(work) if not name.startswith("_")}


def test_a_chat_request() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 100, "n": 2, "temperature": 0.1}
    work = read(CHAT, body)
    assert (work.dialect, work.operation, work.model, work.asked_model) == ("openai", "chat", "m", "m")
    assert (work.stream, work.repeatable, work.max_tokens, work.samples) == (True, True, 100, 2)
    assert work.prompt_tokens == -(-len(json.dumps(MESSAGES)) // 4)
    assert work.body_bytes == len(json.dumps(body))
    assert dict(work.session_fields) == {}


CHAT_FIELDS = [
    ({}, {"model": "m", "stream": False, "repeatable": True, "max_tokens": 0, "samples": 1}),
    ({"model": None, "stream": None, "n": None}, {"model": None, "stream": False, "samples": 1}),
    ({"max_completion_tokens": 7, "max_tokens": 9}, {"max_tokens": 7}),
    ({"max_tokens": -1}, {"max_tokens": 0}),
    ({"max_tokens": 10**400}, {"max_tokens": 1 << 30}),
    ({"max_tokens": 16.0}, {"max_tokens": 16}),
    ({"max_tokens": "16", "stream": "true"}, {"max_tokens": 16, "stream": True}),
    ({"store": True}, {"repeatable": False}),
    ({"store": False}, {"repeatable": True}),
    ({"background": True}, {"repeatable": False}),
    ({"user": "u"}, {"session_fields": {"user": "u"}}),
    ({"user": "", "prompt_cache_key": None}, {"session_fields": {}}),
    ({"user": "u", "prompt_cache_key": "k"}, {"session_fields": {"prompt_cache_key": "k", "user": "u"}}),
    ({"unknown": [{"deep": [1, None]}]}, {"model": "m"}),
]


@pytest.mark.parametrize(("fields", "expected"), CHAT_FIELDS)
def test_chat_fields(fields: dict[str, Any], expected: dict[str, object]) -> None:
    work = read(CHAT, {"model": "m", "messages": MESSAGES, **fields})
    assert {name: getattr(work, name) for name in expected} == expected


def test_tools_are_part_of_the_prompt() -> None:
    plain = read(CHAT, {"messages": MESSAGES})
    tools = [{"type": "function", "function": {"name": "f" * 396}}]
    assert read(CHAT, {"messages": MESSAGES, "tools": tools}).prompt_tokens > plain.prompt_tokens + 100


COMPLETIONS = [
    ({"prompt": "x" * 398}, {"prompt_tokens": 100, "samples": 1, "max_tokens": 16}),
    ({"prompt": ["a", "b", "c"], "n": 2}, {"samples": 6, "prompt_tokens": 4}),
    ({"prompt": "a", "best_of": 3, "n": 2}, {"samples": 3}),
    ({"prompt": [1, 2, 3, 4]}, {"prompt_tokens": 4, "samples": 1}),
    ({"prompt": [[1, 2, 3], [4]]}, {"prompt_tokens": 4, "samples": 2}),
    ({"prompt": []}, {"prompt_tokens": 1, "samples": 1}),
    ({}, {"prompt_tokens": 0, "samples": 1}),
    ({"prompt": "a", "max_tokens": 0}, {"max_tokens": 16}),
    ({"prompt": "a", "store": True}, {"repeatable": False}),
    ({"prompt": "a", "stream": True, "user": "u"}, {"stream": True, "session_fields": {"user": "u"}}),
]


@pytest.mark.parametrize(("fields", "expected"), COMPLETIONS)
def test_completions(fields: dict[str, Any], expected: dict[str, object]) -> None:
    work = read("/v1/completions", {"model": "m", **fields})
    assert {name: getattr(work, name) for name in expected} == expected


OTHERS = [
    ("/v1/embeddings", {"input": ["a" * 18, "b" * 18]}, {"prompt_tokens": 11, "samples": 2}),
    ("/v1/embeddings", {"input": "a", "user": "u"}, {"samples": 1, "session_fields": {"user": "u"}}),
    ("/rerank", {"query": "q" * 6, "documents": ["d" * 26, "d"]}, {"prompt_tokens": 2 + 9}),
    ("/score", {"text_1": "a" * 6, "text_2": "b" * 6}, {"prompt_tokens": 4}),
    ("/classify", {"input": "a"}, {"model": "m", "prompt_tokens": 1}),
    ("/tokenize", {"prompt": "abcdef"}, {"prompt_tokens": 2}),
    ("/v1/responses", {"input": "abcdef", "max_output_tokens": 9, "stream": True, "prompt_cache_key": "k"},
     {"prompt_tokens": 2, "max_tokens": 9, "stream": True, "repeatable": False,
      "session_fields": {"prompt_cache_key": "k"}}),
    ("/v1/audio/speech", {"input": "abcdef"}, {"prompt_tokens": 2, "repeatable": True}),
    ("/v1/images/generations", {"prompt": "a"}, {"width": 1024, "height": 1024, "images": 1, "steps": 0}),
    ("/v1/images/generations", {"size": "512x768", "n": 4, "num_inference_steps": 20},
     {"width": 512, "height": 768, "images": 4, "steps": 20}),
    ("/v1/images/generations", {"size": "auto"}, {"width": 1024, "height": 1024}),
    ("/v1/images/generations", {"size": "0x0", "n": 0}, {"width": 1024, "height": 1024, "images": 1}),
    ("/v1/images/generations", {"size": "999999999x999999999"}, {"width": 16384}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "expected"), OTHERS)
def test_other_operations(path: str, fields: dict[str, Any], expected: dict[str, object]) -> None:
    work = read(path, {"model": "m", **fields})
    assert {name: getattr(work, name) for name in expected} == expected
    assert work.model == work.asked_model == "m"


MALFORMED = [
    (b"", "body is empty, a JSON object is needed"),
    (b"  ", "body is empty, a JSON object is needed"),
    (b"[]", "body must be an object, not an array"),
    (b"null", "body must be an object, not null"),
    (b'{"model":5}', "model must be a string, not an integer"),
    (b'{"model":["m"]}', "model must be a string, not an array"),
    (b'{"stream":"maybe"}', "stream must be true or false, not a string"),
    (b'{"max_tokens":"many"}', "max_tokens must be an integer, not a string"),
    (b'{"max_tokens":1.5}', "max_tokens must be an integer, not a number"),
    (b'{"max_tokens":1e400}', "body: number out of range - at `max_tokens`"),
    (b'{"user":{}}', "user must be a string, not an object"),
    (b'{"model":"m"', "body is not valid JSON: it ends in the middle of a value (byte 12)"),
    (b'{"model":"m"} x', "body is not valid JSON: trailing characters (byte 15)"),
    (b'{"model":"m",}', "body is not valid JSON: trailing comma in object (byte 13)"),
    (b'{"a":[1,,2]}', "body is not valid JSON: invalid character (byte 8)"),
    (b"hello", "body is not valid JSON: invalid character (byte 0)"),
    (b'{"a":NaN}', "body is not valid JSON: invalid character (byte 5)"),
    (b'{"model":"\xff"}', "body is not valid JSON: Invalid UTF-8 encoded string"),
    (b'{"a":' + b"[" * 100_000, "body is nested too deeply"),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_malformed_bodies(body: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        read(CHAT, body)
    assert str(caught.value) == message


def test_a_byte_order_mark_is_allowed_as_in_the_engines() -> None:
    assert read(CHAT, b'\xef\xbb\xbf{"model":"m"}').model == "m"
    with pytest.raises(MalformedBody):
        read(CHAT, b"\xef\xbb\xbf{")


def test_of_equal_keys_the_last_wins() -> None:
    assert read(CHAT, b'{"model":"a","model":"b"}').model == "b"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/rerank"])
@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_a_large_body_is_read_the_same_in_pieces(path: str, step: int) -> None:
    text = "The quick brown fox. " * 1000
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
            "prompt": text,
            "input": text,
            "query": "q",
            "documents": [text, text],
            "model": "m",
            "stream": True,
            "max_tokens": 12,
            "user": "u",
            "store": True,
        }
    ).encode()
    assert attributes(scan(path, body, step)) == attributes(read(path, body))


@given(st.binary(max_size=60) | st.sampled_from([body for body, _ in MALFORMED]), st.integers(1, 9))
def test_what_is_read_in_pieces_is_never_read_less_strictly(body: bytes, step: int) -> None:
    try:
        expected = attributes(read(CHAT, body))
    except MalformedBody:
        return
    assert attributes(scan(CHAT, body, step)) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model":5}', "model must be a string, not an integer"),
        (b'{"model":"' + b"m" * 5000 + b'"}', "model is longer than 4096 bytes"),
        (b'{"model":"a\nb"}', "body is not valid JSON: the value of model (from byte 9)"),
        (b'{"messages":[1,,2]}', "body is not valid JSON: the value of messages (from byte 12)"),
    ],
)
def test_malformed_large_bodies(body: bytes, message: str) -> None:
    with pytest.raises(MalformedBody) as caught:
        scan(CHAT, body, 7)
    assert str(caught.value) == message


body_values = st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
body_names = st.sampled_from(["model", "n", "max_tokens", "prompt", "size", "width", "steps", "n_iter"])


@given(st.dictionaries(body_names, body_values))
def test_no_body_breaks_the_estimate(fields: dict[str, Any]) -> None:
    for path in ("/v1/completions", CHAT, "/v1/images/generations", "/sdapi/v1/txt2img"):
        try:
            work = read(path, fields)
        except MalformedBody:
            continue
        assert estimate(work).seconds >= 0


USAGES = [
    (b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}', (5, 7, 0)),
    (b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}', (5, 7, 3)),
    (b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}', (5, 0, 0)),
    (b'{"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":2}}}', (5, 7, 2)),
    (b'{"usage":{"total_tokens":9}}', (9, 0, 0)),
    (b'{"usage":{"type":"duration","seconds":42}}', None),
    (b'{"usage":null}', None),
    (b'{"choices":[{"usage":{"prompt_tokens":9}}]}', None),
    (b'{"usage":{"prompt_tokens":5},"choices":[{"usage":{"prompt_tokens":9}}]}', (5, 0, 0)),
    (b'{"usage":{"prompt_tokens":9},"usage":{"prompt_tokens":5}}', (5, 0, 0)),
    (b'{"a\\"usage":{"prompt_tokens":9}}', None),
    (b'{"text":"\\"usage\\":{","usage":{"prompt_tokens":5},"kv":{"usage":0.5}}', (5, 0, 0)),
    (b'{"text":"say \\"usage\\"","usage":{"prompt_tokens":5},"x":null}', (5, 0, 0)),
    (b'"usage":{"prompt_tokens":5}}', None),
    (b'{"usage":{"prompt_tokens":"many"}}', None),
    (b"{}", None),
    (b"not json", None),
    (b"", None),
]


@pytest.mark.parametrize(("answer", "expected"), USAGES)
def test_usage_of_plain_answers(answer: bytes, expected: tuple[int, int, int] | None) -> None:
    for path in (CHAT, "/v1/embeddings", "/v1/responses", "/v1/audio/transcriptions"):
        usage = recognise("POST", path).usage(answer)
        found = None if usage is None else (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        assert found == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    error = json.loads(recognise("POST", CHAT).error(status, "some_code", 'a "message"', "r1"))
    assert error == {"error": {"message": 'a "message"', "type": kind, "code": "some_code", "param": None}}


def test_an_error_in_a_stream_is_one_event() -> None:
    event = recognise("POST", CHAT).stream_error("node_broke", "line\nbreak")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["code"] == "node_broke"
    assert json.loads(event[6:])["error"]["type"] == "server_error"


def test_an_alias_is_replaced_in_the_body() -> None:
    assert recognise("POST", CHAT).replace_model(b'{"model":"a"}', b"", "b") == b'{"model":"b"}'
    assert recognise("POST", "/v1/files").replace_model(b'{"model":"a"}', b"", "b") == b'{"model":"a"}'
