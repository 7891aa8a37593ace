"""Server-sent events that pass by, in the shapes and the cuts in which engines and networks deliver them."""

from __future__ import annotations

import json
import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.dialects import Usage
from steelyard.proxy.sse import LARGEST_EVENT, StreamScanner


def event(data: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def compact(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: dict[str, object], **more: object) -> bytes:
    return compact({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}], **more})


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "hello"})
DONE = b"data: [DONE]\n\n"
USAGE = compact({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}})
ERROR = compact({"error": {"message": "out of memory", "code": 500}})


def scan(*reads: bytes, dialect: str = "openai") -> StreamScanner:
    """The reads arrive at 0, 1, 2, ... seconds."""
    scanner = StreamScanner(dialect)
    for now, data in enumerate(reads):
        scanner.feed(data, float(now))
    return scanner


def state(scanner: StreamScanner) -> tuple[object, ...]:
    return (scanner.usage, scanner.error, scanner.done, scanner.events, scanner.between_events)


def test_a_chat() -> None:
    scanner = scan(ROLE, b": keep-alive\n\n", HELLO, HELLO, USAGE, DONE)
    assert scanner.first_token_at == 2.0
    assert scanner.usage == Usage(5, 7)
    assert state(scanner)[1:] == (None, True, 5, True)


FIRST_TOKENS = [
    ("openai", {"choices": [{"delta": {"role": "assistant"}}]}, False),
    ("openai", {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
    ("openai", {"choices": [{"delta": {"content": None}, "finish_reason": "stop"}]}, False),
    ("openai", {"choices": [{"delta": {}}]}, False),
    ("openai", {"choices": [{"delta": None}]}, False),
    ("openai", {"choices": []}, False),
    ("openai", {"choices": [{"delta": {"content": "x"}}]}, True),
    ("openai", {"choices": [{"delta": {"content": " "}}]}, True),
    ("openai", {"choices": [{"delta": {}}, {"delta": {"content": "x"}}]}, True),
    ("openai", {"choices": [{"delta": {"reasoning_content": "x"}}]}, True),
    ("openai", {"choices": [{"delta": {"reasoning": "x"}}]}, True),
    ("openai", {"choices": [{"delta": {"refusal": "x"}}]}, True),
    ("openai", {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
    ("openai", {"choices": [{"delta": {"tool_calls": []}}]}, False),
    ("openai", {"choices": [{"text": ""}]}, False),
    ("openai", {"choices": [{"text": "x"}]}, True),
    ("openai", {"type": "response.created", "response": {"usage": None}}, False),
    ("openai", {"type": "response.output_text.delta", "delta": "x"}, True),
    ("openai", {"type": "response.output_text.delta", "delta": ""}, False),
    ("openai", {"type": "transcript.text.delta", "delta": "x"}, True),
    ("openai", {"type": "image_generation.partial_image", "b64_json": "QUJD"}, True),
    ("openai", {"error": {"message": "m"}}, False),
    ("openai", {}, False),
    ("openai", b"not json", True),
    ("openai", b"", True),
    ("anthropic", {"type": "message_start", "message": {}}, False),
    ("anthropic", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, False),
    ("anthropic", {"type": "ping"}, False),
    ("anthropic", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, True),
    ("anthropic", {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}}, True),
    ("anthropic", b"not json", True),
    ("triton", {"text_output": ""}, True),
    ("triton", {"error": "failed"}, False),
    ("triton", b"not json", True),
    ("generic", {"token": {"text": "x"}}, True),
    ("generic", {"choices": [{"delta": {}}]}, False),
    ("generic", {"choices": [{"delta": {"content": "x"}}]}, True),
    ("generic", {"error": "failed"}, False),
]


@pytest.mark.parametrize(("dialect", "data", "is_first"), FIRST_TOKENS)
def test_what_is_a_first_token(dialect: str, data: object, is_first: bool) -> None:
    scanner = scan(event(data), dialect=dialect)
    assert (scanner.first_token_at is not None) == is_first
    assert scanner.events == 1


ERRORS = [
    ("openai", event({"error": {"message": "m"}}), True),
    ("openai", event({"error": "text"}), True),
    ("openai", event({"object": "error", "message": "m"}), True),
    ("openai", event({"error": None, "choices": []}), False),
    ("openai", event({"choices": [{"delta": {"content": 'the "error" key'}}]}), False),
    ("openai", event({"choices": [{"delta": {"content": "x"}}], "x": {"error": "nested"}}), False),
    ("openai", event({"type": "error", "message": "m"}), True),
    ("openai", event({"type": "response.failed", "response": {"error": {"code": "x"}}}), True),
    ("openai", event({"message": "m"}, "error"), True),
    ("anthropic", event({"type": "error", "error": {"type": "overloaded_error"}}, "error"), True),
    ("anthropic", event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "message_delta"), False),
    ("triton", event({"error": "failed"}), True),
    ("triton", event({"text_output": '"error"', "error": ""}), False),
    ("generic", event({"error": "failed"}), True),
]


@pytest.mark.parametrize("warm", [False, True], ids=["at the start", "later"])
@pytest.mark.parametrize(("dialect", "data", "is_error"), ERRORS)
def test_what_is_an_error(dialect: str, data: bytes, is_error: bool, warm: bool) -> None:
    first = {
        "anthropic": event({"type": "content_block_delta"}, "content_block_delta"),
        "triton": event({"text_output": "x"}),
    }.get(dialect, HELLO)
    scanner = scan(*([first] if warm else []), data, dialect=dialect)
    payload = data.removesuffix(b"\n\n").rpartition(b"data: ")[2]
    assert scanner.error == (payload if is_error else None)


def test_the_first_error_is_kept() -> None:
    scanner = scan(ERROR, event({"error": "second"}), DONE)
    assert scanner.error == ERROR[6:-2]
    assert scanner.done
    assert scanner.first_token_at is None


USAGES: list[tuple[str, list[bytes], Usage | None]] = [
    ("openai", [HELLO, USAGE, DONE], Usage(5, 7)),
    ("openai", [HELLO, DONE], None),
    ("openai", [compact({"choices": [{"delta": {"content": "x"}}], "usage": None})] * 2 + [USAGE], Usage(5, 7)),
    ("openai", [event({"choices": [{"delta": {"content": "x"}}], "usage": None})] * 2 + [USAGE], Usage(5, 7)),
    # Continuous usage: the last one is the sum.
    ("openai", [chunk({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": n}) for n in (1, 2, 3)],
     Usage(5, 3)),
    ("openai", [chunk({"content": "x"}, usage={"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}})],
     Usage(9, 0, 4)),
    ("openai", [HELLO, chunk({"content": '"usage":{"prompt_tokens":1}'})], None),
    ("openai", [HELLO + USAGE + DONE], Usage(5, 7)),
    ("openai", [chunk({"content": "x"}, usage={"prompt_tokens": "odd"})], None),
    ("openai", [event({"type": "response.output_text.delta", "delta": "x"}, "response.output_text.delta"),
                event({"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}})],
     Usage(3, 4)),
    ("anthropic", [event({"type": "message_start", "message": {"usage": {
        "input_tokens": 3, "cache_read_input_tokens": 20, "output_tokens": 1}}}, "message_start"),
        event({"type": "content_block_delta"}, "content_block_delta"),
        event({"type": "message_delta", "usage": {"output_tokens": 9}}, "message_delta")], Usage(23, 9, 20)),
    ("anthropic", [event({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}})],
     Usage(3, 1)),
    ("anthropic", [event({"type": "message_delta", "usage": {"input_tokens": 4, "output_tokens": 9}})], Usage(4, 9)),
    ("triton", [event({"text_output": "x", "usage": {"prompt_tokens": 1}})], None),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "reads", "expected"), USAGES)
def test_usage(dialect: str, reads: list[bytes], expected: Usage | None) -> None:
    assert scan(*reads, dialect=dialect).usage == expected


@pytest.mark.parametrize(
    ("dialect", "data", "done"),
    [
        ("openai", DONE, True),
        ("openai", b"data:[DONE]\n\n", True),
        ("openai", chunk({"content": "data: [DONE]\n\n"}), False),
        ("openai", chunk({"content": "x"}, text="[DONE]"), False),
        ("openai", event({"type": "response.completed", "response": {}}), True),
        ("openai", event({"type": "response.incomplete", "response": {}}), True),
        ("openai", event({"type": "transcript.text.done", "text": "x"}), True),
        ("anthropic", event({"type": "message_stop"}, "message_stop"), True),
        ("anthropic", event({"type": "message_delta"}, "message_delta"), False),
        ("anthropic", event({"type": "content_block_delta", "x": "message_stop"}, "content_block_delta"), False),
        ("triton", event({"text_output": "x"}), False),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_what_ends_an_answer(dialect: str, data: bytes, done: bool, warm: bool) -> None:
    first = {
        "openai": event({"type": "response.output_text.delta", "delta": "x"}) if b"type" in data else HELLO,
        "anthropic": event({"type": "content_block_delta"}, "content_block_delta"),
        "triton": event({"text_output": "x"}),
    }[dialect]
    assert scan(*([first] if warm else []), data, dialect=dialect).done == done


FRAMINGS = [
    b'data: {"choices":[{"text":"x"}]}\n\n',
    b'data:{"choices":[{"text":"x"}]}\n\n',
    b'data: {"choices":[{"text":"x"}]}\r\n\r\n',
    b'data: {"choices":[{"text":"x"}]}\r\r',
    b'data: {"choices":[{"text":"x"}]}\n\r\n',
    b'\xef\xbb\xbfdata: {"choices":[{"text":"x"}]}\n\n',
    b': comment\n\n: another\ndata: {"choices":[{"text":"x"}]}\n\n',
    b'id: 1\nretry: 5\nevent: x\ndata: {"choices":[{"text":"x"}]}\n\n',
    b'data: {"choices":\ndata: [{"text":"x"}]}\n\n',
    b'data: {"choices":\ndata\ndata:\ndata: [{"text":"x"}]}\n\n',
    b'\n\n\ndata: {"choices":[{"text":"x"}]}\n\n\n',
    b'other: y\ndata: {"choices":[{"text":"x"}]}\nnonsense\n\n',
    'data: {"choices":[{"text":"日本語 \N{EARTH GLOBE EUROPE-AFRICA}"}]}\n\n'.encode(),
]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_framings(framing: bytes) -> None:
    for reads in ([framing], [framing[i : i + 1] for i in range(len(framing))]):
        scanner = scan(*reads)
        assert scanner.first_token_at is not None
        assert (scanner.events, scanner.error, scanner.between_events) == (1, None, True)


def test_the_time_of_the_first_token_is_when_its_event_was_whole() -> None:
    assert scan(ROLE, HELLO[:-1], b"\n").first_token_at == 2.0
    assert scan(ROLE, HELLO[:20], HELLO[20:] + HELLO[:5], HELLO[5:]).first_token_at == 2.0


def test_an_event_that_has_not_ended_counts_at_the_end_of_the_stream() -> None:
    scanner = scan(HELLO, USAGE[:-2], dialect="openai")
    assert (scanner.usage, scanner.between_events) == (None, False)
    scanner.end(5.0)
    assert (scanner.usage, scanner.events) == (Usage(5, 7), 2)
    scanner.end(6.0)
    assert scanner.events == 2


BLOCKS = [
    ROLE,
    HELLO,
    USAGE,
    DONE,
    ERROR,
    chunk({"content": '日本 [DONE] \\ " data: \n\n'}),
    chunk({"content": "x"}, usage=None),
    b": ping\n\n",
    b"data: {}\ndata: {}\n\n",
    b"data: {\n\n",
    b"event: content_block_delta\n\n",
    event({"type": "content_block_delta", "text": "message_stop"}, "content_block_delta"),
    b'event: content_block_delta\ndata: {"a":1}\ndata: {"b":2}\n\n',
    event({"type": "message_delta", "usage": {"output_tokens": 4}}, "message_delta"),
    event({"type": "message_stop"}, "message_stop"),
    event({"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}),
    b"event: error\ndata: {}\n\n",
    b"data: {\r\r",
    b"\n",
    b"\r",
    b"\r\n",
    b"data: {",
    b"x",
]


@given(
    st.lists(st.sampled_from(BLOCKS), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 600), max_size=12),
    st.sampled_from(["openai", "anthropic", "triton", "generic"]),
)
def test_cutting_changes_nothing(blocks: list[bytes], ending: bytes, cut: list[int], dialect: str) -> None:
    """T40. The way over whole events and the way over single bytes agree."""
    blocks = [block.replace(b"\n", ending) for block in blocks]
    stream = b"".join(blocks)
    whole = scan(stream, dialect=dialect)
    bounds = [0, *sorted(place for place in cut if place < len(stream)), len(stream)]
    others = (
        [stream[start:end] for start, end in pairwise(bounds)],
        [stream[i : i + 1] for i in range(len(stream))],
        blocks,
    )
    byte = scan(*others[1], dialect=dialect).first_token_at
    for reads in others:
        scanner = scan(*reads, dialect=dialect)
        assert state(scanner) == state(whole)
        # The read that brought the byte with which the first token was there.
        starts = [0, *accumulate(map(len, reads))]
        expected = None if byte is None else next(i for i, end in enumerate(starts[1:]) if end > byte)
        assert scanner.first_token_at == expected


def test_a_huge_event_passes_unread_and_memory_stays_bounded() -> None:
    scanner = StreamScanner("openai")
    scanner.feed(b'data: {"choices":[{"text":"', 0.0)
    for _ in range(64):
        scanner.feed(b"x" * 65536, 1.0)
        assert sum(map(len, scanner._parts)) <= LARGEST_EVENT
    scanner.feed(b'"}]}', 2.0)
    assert not scanner.between_events
    scanner.feed(b"\n\n", 3.0)
    assert (scanner.events, scanner.first_token_at, scanner.between_events) == (1, 3.0, True)
    scanner.feed(USAGE, 4.0)
    assert scanner.usage == Usage(5, 7)


def test_many_lines_are_bounded_like_one() -> None:
    scanner = StreamScanner("openai")
    for _ in range(40):
        scanner.feed(b"data: " + b"x" * 65536 + b"\n", 0.0)
        assert sum(map(len, scanner._data)) <= LARGEST_EVENT
    scanner.feed(b"\n" + USAGE, 1.0)
    assert (scanner.events, scanner.usage) == (2, Usage(5, 7))


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_limit_is_the_same_however_the_event_is_cut(excess: int) -> None:
    data = {"choices": [], "usage": {"prompt_tokens": 1}, "x": ""}
    room = LARGEST_EVENT + excess - len(b"data: " + json.dumps(data).encode()) - 1
    large = event({**data, "x": "y" * room})
    whole = scan(large)
    assert (whole.usage is None) == (excess > 0)
    for step in (1000, 65536, len(large) - 1, len(large) - 2):
        assert state(scan(*(large[i : i + step] for i in range(0, len(large), step)))) == state(whole)


DELTA = event({"type": "content_block_delta", "index": 0}, "content_block_delta")


@pytest.mark.parametrize(
    ("dialect", "first", "read", "events"),
    [
        ("openai", HELLO, HELLO * 3, 3),
        ("openai", HELLO, HELLO + b"data: {}\ndata: {}\n\n" + HELLO, 3),
        ("openai", HELLO, HELLO + b": ping\n\n" + HELLO, 2),
        ("openai", HELLO, HELLO + b"\n\n", 1),
        ("openai", HELLO, b"data: {\n\ndata: {\n\n", 2),
        ("openai", HELLO, b"data: {\ndata: {\n\n", 1),
        ("anthropic", DELTA, DELTA, 1),
        ("anthropic", DELTA, DELTA * 3, 3),
        ("anthropic", DELTA, DELTA + b"event: content_block_delta\n\n" + DELTA, 2),
    ],
)
def test_events_that_are_passed_over_are_counted_exactly(dialect: str, first: bytes, read: bytes, events: int) -> None:
    assert scan(first, read, dialect=dialect).events == 1 + events


def test_passing_events_are_cheap() -> None:
    """Generous: 0.3 to 0.9 us were measured for one such event; to decode it takes several times as much."""
    scanner = scan(HELLO)
    best = 1.0
    for _ in range(50):
        before = time.process_time()
        for _ in range(1000):
            scanner.feed(HELLO, 1.0)
        best = min(best, (time.process_time() - before) / 1000)
    assert best < 5e-6
