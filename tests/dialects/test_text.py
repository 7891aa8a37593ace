"""Tokens of a prompt, from its bytes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from steelyard.dialects.text import IMAGE_TOKENS, MOST_BLOBS, SMALLEST_BLOB, TextMeter, prompt_tokens

PICTURE = "QUJD" * 1000


@pytest.mark.parametrize(
    ("text", "expected"), [(b"", 0), (b"[]", 1), (b"x" * 4, 1), (b"x" * 5, 2), (b"x" * 4000, 1000)]
)
def test_four_bytes_are_a_token(text: bytes, expected: int) -> None:
    assert prompt_tokens(Raw(text)) == expected


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
    ],
    ids=["openai image", "anthropic image", "openai audio"],
)
def test_a_picture_does_not_count_by_its_bytes(part: object, separators: tuple[str, str]) -> None:
    words = "word " * 400
    value = json.dumps(
        [{"role": "user", "content": [part, {"type": "text", "text": words}, part]}], separators=separators
    )
    expected = (len(value) - 2 * len(PICTURE)) / 4 + 2 * IMAGE_TOKENS
    assert prompt_tokens(Raw(value.encode())) == pytest.approx(expected, abs=2)


def test_an_argument_that_is_called_data_is_text() -> None:
    value = json.dumps([{"data": "x" * (SMALLEST_BLOB - 1)}] * 4).encode()
    assert prompt_tokens(Raw(value)) == (len(value) + 3) // 4


chunks = st.lists(
    st.sampled_from(
        [b";base64,", b'"data":"', b'"data": "', b'"', b"A" * SMALLEST_BLOB, b"text ", b"x" * 900, b'"da', b";b"]
    ),
    max_size=30,
)


@given(chunks, st.lists(st.integers(0, 4000), max_size=20))
def test_cutting_changes_nothing(pieces: list[bytes], cut: list[int]) -> None:
    value = b"".join(pieces)
    whole = TextMeter()
    whole.feed(value)
    bounds = [0, *sorted(place for place in cut if place < len(value)), len(value)]
    for places in (bounds, range(len(value) + 1)):
        meter = TextMeter()
        for start, end in pairwise(places):
            meter.feed(value[start:end])
        assert (meter.total, meter.blobs, meter.blob_bytes, meter.tokens) == (
            whole.total,
            whole.blobs,
            whole.blob_bytes,
            whole.tokens,
        )


def test_the_pictures_that_are_looked_for_are_bounded() -> None:
    blob = b'"data":"' + b"A" * SMALLEST_BLOB + b'"'
    meter = TextMeter()
    meter.feed(blob * (MOST_BLOBS + 5))
    assert (meter.blobs, meter.blob_bytes) == (MOST_BLOBS, MOST_BLOBS * SMALLEST_BLOB)
