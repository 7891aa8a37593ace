"""Server-sent events are counted alike, however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.sim.events import EventCounter

OPENAI = b'data: {"a": 1}\n\ndata: {"a": 2}\n\n: ping\n\ndata: [DONE]\n\n'


def read(*pieces: bytes) -> EventCounter:
    counter = EventCounter()
    for moment, piece in enumerate(pieces, 1):
        counter.feed(piece, float(moment))
    return counter


@pytest.mark.parametrize(
    ("stream", "received", "ended", "error"),
    [
        (OPENAI, 3, True, ""),
        (OPENAI.replace(b"\n", b"\r\n"), 3, True, ""),
        (OPENAI.replace(b"data: ", b"data:"), 3, True, ""),
        (b"data: 1\n\n", 1, False, ""),
        (b"data: 1\ndata: 2\n\n", 1, False, ""),
        (b"data: 1\n", 0, False, ""),
        (b": comment\n\n", 0, False, ""),
        (b"event: message_stop\ndata: {}\n\n", 1, True, ""),
        (b'data: {"error": {"code": "node_broke"}}\n\n', 1, False, 'data: {"error": {"code": "node_broke"}}'),
        (b'data: {"text": "data: [DONE]"}\n\n', 1, False, ""),
    ],
)
def test_what_a_stream_says(stream: bytes, received: int, ended: bool, error: str) -> None:
    counter = read(stream)
    assert (counter.received, counter.ended, counter.error) == (received, ended, error)


@given(cuts=st.sets(st.integers(0, len(OPENAI) * 2)), crlf=st.booleans())
def test_any_cut_gives_the_same(cuts: set[int], crlf: bool) -> None:
    stream = OPENAI.replace(b"\n", b"\r\n") if crlf else OPENAI
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    counter = read(*(stream[a:b] for a, b in pairwise(edges)))
    assert (counter.received, counter.ended) == (3, True)


def test_moments_of_the_first_and_the_last_event() -> None:
    counter = read(b"data: 1\n", b"\ndata: 2\n", b"\n", b"data: 3")
    assert (counter.first, counter.last, counter.received) == (2.0, 3.0, 2)
