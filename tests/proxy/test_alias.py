"""The alias in an answer that passes, however it is cut."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from steelyard.proxy.alias import Renaming

SCRAPS = [
    b'"model"',
    b'"model":"m"',
    b'"model" :\t"m"',
    b'"model": "mm"',
    b'"m"',
    b":",
    b" ",
    b'\\"model\\":\\"m\\"',
    b'foo\\"model":"m"',
    b"\\",
    b"x",
    b"\n",
]


def passed(renaming: Renaming, pieces: list[bytes]) -> bytes:
    return b"".join([*map(renaming.answer, pieces), renaming.end()])


@given(st.lists(st.sampled_from(SCRAPS), max_size=12), st.lists(st.integers(0, 80), max_size=6), st.booleans())
def test_any_cut_gives_the_same(scraps: list[bytes], cuts: list[int], events: bool) -> None:
    whole = b"".join(scraps)
    if events:
        # A member stands in one line.
        whole = re.sub(rb'"model"\s*:\s*', lambda member: member[0].replace(b"\n", b""), whole)
    ends = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(ends)]
    renaming = Renaming("gpt-4", "m")
    assert renaming.begin(b"text/event-stream" if events else b"application/json")
    assert passed(renaming, pieces) == re.sub(rb'(?<!\\)"model"(\s*:\s*)"m"', rb'"model"\1"gpt-4"', whole)


def test_whole_lines_of_a_stream_are_not_held_back() -> None:
    renaming = Renaming("a", "b")
    renaming.begin(b"text/event-stream")
    assert renaming.answer(b'data: {"model": "b"}\n\n') == b'data: {"model": "a"}\n\n'
    assert renaming.answer(b"data: [DO") == b""
    assert renaming.answer(b"NE]\n\n") == b"data: [DONE]\n\n"


def test_only_the_last_bytes_of_a_plain_answer_are_held_back() -> None:
    renaming = Renaming("a", "b")
    renaming.begin(b"application/json")
    assert len(renaming.answer(bytes(100_000))) > 99_900


def test_names_are_written_as_json() -> None:
    renaming = Renaming('a"\\1', "b\\c.+")
    renaming.begin(b"application/json")
    assert passed(renaming, [b'{"model":"b\\\\c.+"}']) == b'{"model":"a\\"\\\\1"}'
    other = Renaming("a", "b.")
    other.begin(b"application/json")
    assert passed(other, [b'{"model":"bx"}']) == b'{"model":"bx"}'
