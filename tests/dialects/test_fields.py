"""Top-level fields of JSON in pieces, against json.loads."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steelyard.dialects import JSONFields, MalformedBody, model_span, replace_model
from steelyard.dialects.fields import LIMIT, MOST_MEMBERS, LongValue

NAMES = ("model", "stream", "messages", "n")

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
keys = st.sampled_from([*NAMES, "mode", "models", "", 'model"', "\\"]) | st.text(max_size=8)
members = st.lists(st.tuples(keys, values), max_size=8)
layouts = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")])
cuts = st.lists(st.integers(0, 300), max_size=12)


def read(body: bytes, cut: list[int] | int, **options: Any) -> dict[str, bytes | LongValue]:
    fields = JSONFields(NAMES, **options)
    places = range(0, len(body), cut) if isinstance(cut, int) else sorted({place for place in cut if place < len(body)})
    bounds = [0, *places, len(body)]
    for start, end in pairwise(bounds):
        fields.feed(body[start:end])
    return fields.close()


def outcome(body: bytes, cut: list[int] | int, **options: Any) -> Any:
    try:
        return read(body, cut, **options)
    except MalformedBody as error:
        return str(error)


@given(members, layouts, st.booleans(), cuts)
@example([("messages", [[["\\", '"', "]"]]])], (",", ":"), True, [1, 2, 3])
def test_small_values_are_those_of_json_loads(
    pairs: list[tuple[str, Any]], layout: tuple[str, str], ascii_only: bool, cut: list[int]
) -> None:
    comma, colon = layout
    text = comma.join(
        json.dumps(key, ensure_ascii=ascii_only) + colon + json.dumps(value, separators=layout, ensure_ascii=ascii_only)
        for key, value in pairs
    )
    body = ("{" + text + "}").encode("utf-8", "surrogatepass")
    wanted = {name: value for name, value in pairs if name in NAMES}
    found = read(body, cut)
    assert {name: json.loads(raw) for name, raw in found.items() if isinstance(raw, bytes)} == wanted, (
        "no value here is long"
    )


@given(members, cuts, st.integers(16, 60))
def test_cutting_changes_nothing(pairs: list[tuple[str, Any]], cut: list[int], limit: int) -> None:
    body = ("{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in pairs) + "}").encode()
    whole = outcome(body, [], limit=limit, metered=("messages",))
    assert outcome(body, cut, limit=limit, metered=("messages",)) == whole
    assert outcome(body, 1, limit=limit, metered=("messages",)) == whole


@given(st.lists(st.sampled_from([*'{}[],:"\\ au0-.', "\\\\", '\\"', '"model"', '"a":', "true", "[]"])), cuts)
def test_cutting_changes_nothing_of_what_is_no_json_either(pieces: list[str], cut: list[int]) -> None:
    body = "".join(["{", *pieces, "}"]).encode()
    whole = outcome(body, [])
    assert isinstance(outcome(body, cut), type(whole))
    if isinstance(whole, dict):
        assert outcome(body, cut) == whole
    try:
        expected = json.loads(body)
    except ValueError:
        return
    assert isinstance(whole, dict), "what is JSON is accepted"
    assert {name: json.loads(raw) for name, raw in whole.items()} == {k: v for k, v in expected.items() if k in NAMES}


@given(members, st.data())
def test_a_body_that_is_cut_short_is_malformed(pairs: list[tuple[str, Any]], data: st.DataObject) -> None:
    body = json.dumps(dict(pairs)).encode()
    short = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(MalformedBody):
        read(short, 7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body is empty, a JSON object is needed"),
        (b" \n", "body is empty, a JSON object is needed"),
        (b"[1]", "body must be a JSON object, which starts with {"),
        (b'"x"', "body must be a JSON object, which starts with {"),
        (b'{"a":1', "body is not valid JSON: it ends in the middle of a value (byte 6)"),
        (b'{"a":[{}', "body is not valid JSON: it ends in the middle of a value (byte 8)"),
        (b'{"a":"x', "body is not valid JSON: it ends in the middle of a value (byte 7)"),
        (b'{"a":"x\\"}', "body is not valid JSON: it ends in the middle of a value (byte 10)"),
        (b'{"a":1,}', "body is not valid JSON: a key in double quotes was expected (byte 7)"),
        (b"{a:1}", "body is not valid JSON: a key in double quotes was expected (byte 1)"),
        (b'{"a" 1}', "body is not valid JSON: a colon was expected (byte 5)"),
        (b'{"a":1 "b":2}', "body is not valid JSON: a comma or } was expected (byte 7)"),
        (b'{"a":[]]}', "body is not valid JSON: a comma or } was expected (byte 7)"),
        (b'{"a":01}', "body is not valid JSON: invalid value (byte 5)"),
        (b'{"a":tru}', "body is not valid JSON: invalid value (byte 5)"),
        (b'{"a":}', "body is not valid JSON: invalid value (byte 5)"),
        (b'{"a":1} x', "body is not valid JSON: the object has ended before (byte 8)"),
        (b'{"a":1}{}', "body is not valid JSON: the object has ended before (byte 7)"),
        (b'{"' + b"k" * 5000 + b'":1}', "body is not valid JSON: a key is longer than 4096 bytes (byte 1)"),
        (b'{"a":' + b"1" * 5000 + b"}", "body is not valid JSON: a number is longer than 4096 bytes (byte 5)"),
        (b'{"mod\\x":1}', "body is not valid JSON: a key is not a string (byte 1)"),
    ],
)
def test_errors_say_what_and_where(body: bytes, message: str) -> None:
    assert outcome(body, []) == message
    assert outcome(body, 1) == message


def test_a_byte_order_mark_is_allowed() -> None:
    assert read(b'\xef\xbb\xbf{"n":1}', 1) == {"n": b"1"}
    assert isinstance(outcome(b"\xef\xbb{}", 1), str)


def test_escaped_keys_are_the_keys_that_they_mean() -> None:
    assert read(b'{"\\u006dodel":"a"}', 3) == {"model": b'"a"'}
    assert read(b'{"a\\"b\\\\":1,"n":2}', 3) == {"n": b"2"}


def test_the_last_of_equal_keys_wins() -> None:
    assert read(b'{"model":"a","n":1,"model":"b"}', 4) == {"model": b'"b"', "n": b"1"}


def test_a_long_value_is_measured_and_not_kept() -> None:
    body = b'{"messages":["' + b"word " * 2000 + b'"],"model":"m"}'
    found = read(body, 1000, metered=("messages",))
    assert found["model"] == b'"m"'
    assert found["messages"] == LongValue("[", 10004, 2501, 1)


def test_spans_are_offsets_in_the_body() -> None:
    body = b'{ "n" : 12 , "model":"a\\"b" ,"messages":[[1],2] }'
    fields = JSONFields(NAMES)
    for index in range(len(body)):
        fields.feed(body[index : index + 1])
    fields.close()
    assert {name: body[slice(*span)] for name, span in fields.spans.items()} == {
        "n": b"12",
        "model": b'"a\\"b"',
        "messages": b"[[1],2]",
    }


def test_the_work_that_keys_can_cause_is_bounded() -> None:
    body = b"{" + b'"a":[],' * (MOST_MEMBERS + 1) + b'"model":"m"}'
    assert outcome(body, 1000) == outcome(body, [])
    assert "fields at the top level" in outcome(body, [])
    plain = b"{" + b'"a":1,' * (MOST_MEMBERS * 10) + b'"model":"m"}'
    assert read(plain, 1000) == {"model": b'"m"'}, "members that need no closer look are free"


def test_depth_has_no_limit_and_does_no_harm() -> None:
    deep = b'{"a":' + b"[" * 300_000 + b"]" * 300_000 + b',"model":"m"}'
    assert read(deep, 70_000) == {"model": b'"m"'}
    assert "ends in the middle" in outcome(deep[:400_000], 70_000)


PATHOLOGICAL = {
    "integers": b"1,",
    "empty strings": b'"",',
    "escapes": b'"\\"\\\\",',
    "arrays": b"[],",
    "nine deep": b"[" * 9 + b"]" * 9 + b",",
    "objects": b'{"a":{"b":[{}]}},',
}


@pytest.mark.parametrize("unit", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_no_piece_takes_long(unit: bytes) -> None:
    """Pieces of 256 KiB. The limit is generous: the median here is 1 to 5 ms, a loop over characters takes 30."""
    body = b'{"x":[' + unit * ((1 << 20) // len(unit)) + b'1],"model":"m"}'
    fields = JSONFields(("model",))
    times = []
    for start in range(0, len(body), 1 << 18):
        before = time.thread_time()
        fields.feed(body[start : start + (1 << 18)])
        times.append(time.thread_time() - before)
    assert fields.close() == {"model": b'"m"'}
    assert sorted(times)[1] < 0.025


def test_a_picture_of_16_mib_takes_hardly_any_time() -> None:
    """T60: a body with 16 MiB of base64."""
    start = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    body = start + b"QUJD" * (4 << 20) + b'"}}]}],"model":"m"}'
    fields = JSONFields(NAMES, metered=("messages",))
    before = time.thread_time()
    for place in range(0, len(body), 1 << 18):
        fields.feed(body[place : place + (1 << 18)])
    found = fields.close()
    assert time.thread_time() - before < 0.2
    assert found["model"] == b'"m"'
    assert isinstance(found["messages"], LongValue)
    assert found["messages"].tokens < 700, "one picture and a few words"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"old","n":1}', b'{"model":"new","n":1}'),
        (b'{"n":1 , "model" : "old" }', b'{"n":1 , "model" : "new" }'),
        (b'{"a":{"model":"old"},"model":"old"}', b'{"a":{"model":"old"},"model":"new"}'),
        (
            b'{"messages":["\\"model\\":\\"old\\""],"model":"old"}',
            b'{"messages":["\\"model\\":\\"old\\""],"model":"new"}',
        ),
        (b'{"a":{"model":"old"}}', b'{"a":{"model":"old"}}'),
        (b'{"model":5}', b'{"model":5}'),
        (b'{"model":"old"', b'{"model":"old"'),
        (b"[]", b"[]"),
        (b"", b""),
    ],
)
def test_only_the_top_level_model_is_replaced(body: bytes, expected: bytes) -> None:
    assert replace_model(body, "new") == expected


def test_a_replaced_model_is_written_as_json() -> None:
    assert json.loads(replace_model(b'{"model":"old"}', 'a"b\\ü')) == {"model": 'a"b\\ü'}


def test_the_span_of_the_model_has_its_quotes() -> None:
    assert model_span(b'{"model":"old"}') == (9, 14)
    assert model_span(b'{"a":{"b":"x"}}', ("a", "b")) == (10, 13)
    assert model_span(b'{"a":["b"]}', ("a", "b")) is None
    long = b'{"model":"' + b"m" * (LIMIT + 1) + b'"}'
    assert model_span(long) == (9, len(long) - 1)


@given(values, st.integers(1, 120), st.integers(0, 40), st.lists(st.integers(0, 20_000), max_size=5))
def test_the_end_of_a_large_value_is_found_exactly(value: Any, times: int, depth: int, cut: list[int]) -> None:
    large = b"[" * depth + json.dumps([value] * times).encode() + b"]" * depth
    body = b'{"messages":' + large + b',"x":' + large + b',"model":"m","n":' + large + b"}"
    whole = read(body, [], limit=1 << 20)
    assert whole == {"messages": large, "model": b'"m"', "n": large}
    assert read(body, cut, limit=1 << 20) == whole
    assert read(body, 97, limit=1 << 20) == whole
