"""Frames that pass by: the relay knows where one ends, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.proxy.websocket import FrameScanner, close_frame

SIZES = st.one_of(st.integers(0, 130), st.sampled_from([125, 126, 127, 65_535, 65_536, 70_000]))


def frame(opcode: int, size: int, masked: bool) -> bytes:
    """A frame of RFC 6455, 5.2, of zeros."""
    mask = 128 if masked else 0
    if size < 126:
        head = bytes((128 | opcode, mask | size))
    elif size < 1 << 16:
        head = bytes((128 | opcode, mask | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((128 | opcode, mask | 127)) + size.to_bytes(8, "big")
    return head + (b"mask" if masked else b"") + bytes(size)


FRAMES = st.lists(st.tuples(st.sampled_from([0, 1, 2, 9, 10]), SIZES, st.booleans()), min_size=1, max_size=5)


@given(FRAMES, st.lists(st.integers(0, 400_000), max_size=8), st.booleans())
def test_any_cut_gives_the_same(frames: list[tuple[int, int, bool]], cuts: list[int], closing: bool) -> None:
    whole = b"".join(frame(*each) for each in frames) + (close_frame(1000, "") if closing else b"")
    ends = {len(b"".join(frame(*each) for each in frames[:number])) for number in range(len(frames) + 1)} | {len(whole)}
    scanner = FrameScanner()
    for start, end in pairwise([0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]):
        scanner.feed(whole[start:end])
        assert scanner.between_frames == (end in ends)
    assert scanner.closed is closing


@given(st.binary(max_size=300))
def test_any_bytes_are_followed(data: bytes) -> None:
    FrameScanner().feed(data)


def test_a_close_frame_counts_from_its_first_bytes() -> None:
    scanner = FrameScanner()
    scanner.feed(close_frame(1000, "bye")[:2])
    assert scanner.closed
    assert not scanner.between_frames


def test_close_frames_are_those_of_the_standard() -> None:
    assert close_frame(1001, "") == b"\x88\x02\x03\xe9"
    assert close_frame(1014, "gone") == b"\x88\x06\x03\xf6gone"
    assert close_frame(1001, "", b"\x01\x02\x03\x04") == b"\x88\x82\x01\x02\x03\x04\x02\xeb"
    assert len(close_frame(1000, "x" * 1000)) <= 2 + 125, "a control frame is short"


@pytest.mark.parametrize("reason", ["ü" * 100, "x" * 119 + "ü"])
def test_a_reason_is_cut_between_characters(reason: str) -> None:
    payload = close_frame(1000, reason)[4:]
    assert reason.startswith(payload.decode())
