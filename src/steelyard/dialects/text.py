"""How many tokens a prompt has, from its bytes."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

BYTES_PER_TOKEN: Final = 4
"""English text with the tokenizers of current models; Chinese in UTF-8 is near 3 and is counted a little short."""
IMAGE_TOKENS: Final = 576
"""Of one picture: 24 x 24 patches, CLIP ViT-L/14 at 336 pixels (LLaVA 1.5). Newer models take 250 to 1,500."""
BLOB_MARKS: Final = (b";base64,", b'"data":"', b'"data": "')
"""What stands before base64: data URLs (OpenAI), and `source.data` or `input_audio.data` (Anthropic, OpenAI)."""
LONGEST_MARK: Final = max(map(len, BLOB_MARKS))
FEW_BYTES: Final = 1024
"""A prompt of at most so many bytes is not searched for pictures."""
SMALLEST_BLOB: Final = 512
"""Bytes from which such a string is taken for a picture and not for an argument that is called data."""
MOST_BLOBS: Final = 1000
"""So many are looked at in one prompt, which bounds the work; the rest counts as text."""

NO_SIGNS: Final = bytes(set(range(256)) - set(b'"[]{},:'))


def tokens(text_bytes: int, blobs: int = 0) -> int:
    """The estimate, at least 1 when there is a prompt at all."""
    return (text_bytes + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN + blobs * IMAGE_TOKENS


def prompt_tokens(raw: Raw) -> int:
    """The estimate for a JSON value that holds a prompt: text counts by its bytes, a picture as a picture."""
    length = memoryview(raw).nbytes
    if length <= FEW_BYTES:
        return (length + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
    meter = TextMeter()
    meter.feed(bytes(raw))
    return meter.tokens


def unescaped(data: bytes) -> bytes:
    """JSON without escaped backslashes and quotes, at the same offsets: a quote that is left is the end of a string."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def whole_escapes(data: bytes) -> int:
    """How many bytes of `data` end on no half of an escape: all, or all but the backslash at the end."""
    if data.endswith(b"\\") and (len(data) - len(data.rstrip(b"\\"))) % 2:
        return len(data) - 1
    return len(data)


class TextMeter:
    """Measures a JSON value that passes in pieces. However it is cut, the result is the same."""

    __slots__ = ("_blob", "_in_blob", "_marks", "_tail", "blob_bytes", "blobs", "total")

    def __init__(self) -> None:
        self.total = 0
        self.blobs = 0
        self.blob_bytes = 0
        self._marks = 0
        self._blob = 0
        self._in_blob = False
        self._tail = b""

    @property
    def tokens(self) -> int:
        if self.total <= FEW_BYTES:
            return tokens(self.total)
        return tokens(self.total - self.blob_bytes, self.blobs)

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the value."""
        self.total += len(piece)
        position = 0
        found: dict[bytes, int] = {}
        while True:
            if self._in_blob:
                end = piece.find(b'"', position)
                if end < 0:
                    self._blob += len(piece) - position
                    return
                self._blob += end - position
                if self._blob >= SMALLEST_BLOB:
                    self.blobs += 1
                    self.blob_bytes += self._blob
                self._in_blob = False
                self._tail = b""
                position = end
                continue
            if self._marks >= MOST_BLOBS:
                return
            start = self._mark_end(piece, position, found)
            if start < 0:
                left = piece[max(position, len(piece) - LONGEST_MARK + 1) :]
                self._tail = (self._tail + left)[-LONGEST_MARK + 1 :] if position == 0 else left
                return
            self._marks += 1
            self._blob = 0
            self._in_blob = True
            position = start

    def _mark_end(self, piece: bytes, position: int, found: dict[bytes, int]) -> int:
        """Where the first blob mark at or after `position` ends; -1 when none does. The tail is before the piece."""
        best = -1
        if position == 0 and self._tail:
            seam = self._tail + piece[: LONGEST_MARK - 1]
            for mark in BLOB_MARKS:
                at = seam.find(mark)
                end = at + len(mark) - len(self._tail)
                if at >= 0 and end > 0 and (best < 0 or end < best):
                    best = end
        for mark in BLOB_MARKS:
            at = found.get(mark, -2)
            if at == -2 or 0 <= at < position:
                at = found[mark] = piece.find(mark, position)
            if at >= 0 and (best < 0 or at + len(mark) < best):
                best = at + len(mark)
        return best


class InputMeter(TextMeter):
    """Measures a JSON value that holds one sequence or several: a text, token ids, or a list of either.

    A list of objects is as many sequences. However the value is cut, the result is the same.
    """

    __slots__ = ("_before", "_in_string", "_last", "_numbers", "_objects", "_opens", "_strings")

    def __init__(self) -> None:
        super().__init__()
        self._in_string = False
        self._before = b""  # half of an escape
        self._last = b""  # the last sign before the piece
        self._strings = 0
        self._objects = 0
        self._opens = 0
        self._numbers = 1

    @property
    def sequences(self) -> int:
        """At least 1."""
        return self._objects or self._strings or max(1, self._opens - 1)

    @property
    def tokens(self) -> int:
        if self._opens == 0 or self._strings or self._objects:
            return super().tokens
        return self._numbers

    def feed(self, piece: bytes) -> None:
        super().feed(piece)
        data = self._before + piece
        end = whole_escapes(data)
        self._before = data[end:]
        parts = unescaped(data[:end]).split(b'"')
        quotes = len(parts) - 1
        self._strings += (quotes + (not self._in_string)) // 2
        signs = b'"'.join(parts[self._in_string :: 2]).translate(None, NO_SIGNS)
        self._in_string ^= quotes % 2 == 1
        if not signs:
            return
        self._opens += signs.count(b"[")
        self._numbers += signs.count(b",")
        signs = self._last + signs
        self._objects += signs.count(b"[{") + signs.count(b",{")
        self._last = signs[-1:]
