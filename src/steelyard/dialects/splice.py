"""Other bytes in some places of a body that is held in pieces."""

from __future__ import annotations

from collections.abc import Iterable


def splice(pieces: Iterable[bytes], spans: Iterable[tuple[int, int]], text: bytes) -> list[bytes]:
    """`pieces` with `text` instead of what stands in `spans`.

    Spans are offsets in the whole body, of the first byte and of the byte after the last: in order, not overlapping,
    each beginning before the end of the body. Pieces without a span are not copied.
    """
    spliced: list[bytes] = []
    waiting = iter(spans)
    span = next(waiting, None)
    offset = done = 0
    for piece in pieces:
        end = offset + len(piece)
        while span is not None and span[0] < end:
            if done < span[0]:
                spliced.append(piece[done - offset : span[0] - offset])
            spliced.append(text)
            done = span[1]
            span = next(waiting, None)
        if done < end:
            # A slice of all of it is a copy where this is compiled.
            spliced.append(piece if done == offset else piece[done - offset :])
            done = end
        offset = end
    return spliced
