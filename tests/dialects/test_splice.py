"""Other bytes in some places of a body that is held in pieces: as if it were in one."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.dialects import recognise
from steelyard.dialects.splice import splice

CHAT = recognise("POST", "/v1/chat/completions")
PICTURE = recognise("POST", "/sdapi/v1/txt2img")
SPEECH = recognise("POST", "/v1/audio/transcriptions")
FORM = b"multipart/form-data; boundary=b"


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.binary(min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=8), st.data())
def test_it_is_what_it_would_be_in_one_piece(data: bytes, cuts: list[int], draw: st.DataObject) -> None:
    bounds = sorted(draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=6, unique=True)))
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    expected = data
    for start, end in reversed(spans):
        expected = expected[:start] + b"<new>" + expected[end:]
    assert b"".join(splice(cut(data, cuts), spans, b"<new>")) == expected


def test_pieces_without_a_span_are_not_copied() -> None:
    pieces = [bytes(1000), bytes(1000), bytes(1000)]
    spliced = splice(pieces, [(1500, 1501)], b"x")
    assert spliced[0] is pieces[0]
    assert spliced[-1] is pieces[2]


BODIES = [
    (CHAT, b"", b'{"model":"old","messages":[]}'),
    (CHAT, b"", b'{"messages":[{"role":"user","content":"\\"model\\":\\"x\\""}] , "model" : "old" }'),
    (CHAT, b"", b'{"model":"first","messages":[],"model":"old"}'),
    (CHAT, b"", b'{"messages":[]}'),
    (CHAT, b"", b'{"model":null,"messages":[]}'),
    (PICTURE, b"", b'{"model":"x","override_settings":{"a":[1],"sd_model_checkpoint":"old"},"prompt":"cat"}'),
    (PICTURE, b"", b'{"override_settings":{"a":1}}'),
    (PICTURE, b"", b'{"prompt":"cat"}'),
    (
        SPEECH,
        FORM,
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nold\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\r\n-model\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n\r\n--b--\r\n',
    ),
]


@pytest.mark.parametrize(("operation", "kind", "body"), BODIES, ids=range(len(BODIES)))
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_scanner_replaces_what_its_operation_replaces(operation, kind: bytes, body: bytes, cuts: list[int]) -> None:
    scanner = operation.scanner(kind)
    pieces = cut(body, cuts)
    for piece in pieces:
        scanner.feed(piece)
    scanner.work()
    replaced = b"".join(splice(pieces, scanner.model_spans(), scanner.written('n"ew')))
    assert replaced == operation.replace_model(body, kind, 'n"ew')
    if b"old" in body:
        assert b"old" not in replaced
    if kind == b"":
        assert json.loads(replaced) == json.loads(body.replace(b'"old"', b'"n\\"ew"'))
