"""Top-level fields of a JSON object that arrives in pieces.

A body may hold a picture of 16 MiB; to decode it in one go would stop every other request for milliseconds. Here each
piece is looked at once, as it arrives, by regular expressions and searches that run at the speed of C.

Of what is not asked for, only the structure is checked: strings end, brackets balance (of which kind they are does
not matter below the top level), and nothing follows the object. The rest is the node's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from steelyard.dialects.operation import MalformedBody
from steelyard.dialects.text import InputMeter, TextMeter, unescaped, whole_escapes

LIMIT = 4096
"""Bytes up to which a value is kept: names of models and session keys are far shorter."""
MOST_MEMBERS = 1000
"""Members that need a closer look: with a wanted or escaped key, or an array or object as value. Bounds the work."""

# In these expressions backslash escapes are gone (see `unescaped`), so a quote always is the end of a string.
_SPACE = rb"[ \t\r\n]*+"


_SCALAR = rb"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+|true|false|null)"
_is_scalar = re.compile(_SCALAR).fullmatch
_signs = re.compile(rb'["\[\]{}]').finditer
_runs = re.compile(rb"\[++|\]++").findall
_word = re.compile(rb"[-+.0-9A-Za-z]*+").match
_space = re.compile(_SPACE).match
_BOM = b"\xef\xbb\xbf"

START, FIRST_KEY, KEY, COLON, VALUE, INSIDE, COMMA, END = range(8)
QUOTE, OPEN_BRACE, CLOSE_BRACE, COMMA_SIGN, COLON_SIGN = b'"{},:'
BRACKETS = bytes.maketrans(b"{}", b"[]")
OTHERS = bytes(set(range(256)) - set(b"[]{}"))
FIRST_BLOCK = 512
SMALLEST_BLOCK = 128
"""Bytes: how much is looked at in one step to see whether a value ends in it (see `_inside`)."""


@lru_cache(maxsize=64)
def _skip_members(names: frozenset[bytes], limit: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches whole members, each with its comma, that need no closer look: plain key, plain value, not wanted."""
    wanted = b"|".join(map(re.escape, sorted(names)))
    # Not longer than the limit, like the numbers that are looked at one by one.
    number = _SCALAR.replace(b"]*+", b"]{0,%d}+" % (limit // 3 - 2)).replace(b"]++", b"]{1,%d}+" % (limit // 3 - 2))
    key = b'"(?!(?:%b)")[^"\\\\]{0,%d}+"' % (wanted, limit)
    member = key + _SPACE + b":" + _SPACE + b"(?:" + number + b'|"[^"]*+")' + _SPACE + b","
    # Not possessive (`)*+`): CPython before 3.11.5 forgets what such a group has matched. It never has to step back
    # far, since each member is possessive in itself.
    return re.compile(b"(?:" + _SPACE + member + b")*").match


def _depths(text: bytes, in_string: bool) -> tuple[int, int, bool]:
    """How the depth of nesting changes over a piece of text: in all, at its lowest; and whether it ends in a string.

    No loop here goes over characters. Pairs of brackets with nothing in between are taken out for as long as many go
    at once, which ends shallow nesting; what is left is looked at in runs, which are few where nesting is deep.
    """
    parts = text.split(b'"')
    ends_in_string = in_string ^ (len(parts) % 2 == 0)
    brackets = b"".join(parts[in_string::2]).translate(BRACKETS, OTHERS)
    while brackets:
        reduced = brackets.replace(b"[]", b"")
        few = 16 * (len(brackets) - len(reduced)) < len(brackets)
        brackets = reduced
        if few:
            break
    depth = lowest = 0
    for run in _runs(brackets):
        if run[0] == 91:  # [
            depth += len(run)
        else:
            depth -= len(run)
            lowest = min(lowest, depth)
    return depth, lowest, ends_in_string


@dataclass(slots=True)
class LongValue:
    """A wanted value of more than the limit, which was not kept."""

    kind: str
    """Its first character: `"`, `[` or `{`."""
    length: int
    """In bytes."""
    tokens: int
    """The estimate for a metered field, else 0."""
    sequences: int
    """In a listed field, else 1."""


class JSONFields:
    """The values of some top-level keys.

    `names` are the keys wanted, `limit` is in bytes (at least 16), `metered` are those of the names that hold prompts,
    `listed` is the one whose value may be a list of them.
    Duplicate keys: the last one wins, as in the engines. However the body is cut, the results are the same.
    """

    __slots__ = (
        "_depth",
        "_in_string",
        "_kind",
        "_length",
        "_listed",
        "_members",
        "_meter",
        "_metered",
        "_name",
        "_names",
        "_offset",
        "_parts",
        "_rest",
        "_skip",
        "_start",
        "_state",
        "_values",
        "limit",
        "spans",
    )

    def __init__(
        self, names: Iterable[str], *, limit: int = LIMIT, metered: Iterable[str] = (), listed: str = ""
    ) -> None:
        self._names = {name.encode(): name for name in names}
        self._metered = frozenset(metered)
        self._listed = listed
        self.limit = limit
        self.spans: dict[str, tuple[int, int]] = {}
        """Where each wanted value stands in the body: offsets of its first byte and of the byte after it."""
        self._values: dict[str, bytes | LongValue] = {}
        self._skip = _skip_members(frozenset(self._names), limit)
        self._members = 0
        self._state = START
        self._rest = b""
        self._offset = 0  # of the first byte of `rest` in the body
        self._depth = 0
        self._in_string = False
        # The value that is being read:
        self._name: str | None = None
        self._start = 0
        self._kind = ""
        self._length = 0
        self._parts: list[bytes] | None = None
        self._meter: TextMeter | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Raises MalformedBody."""
        data = self._rest + piece if self._rest else piece
        end = whole_escapes(data)
        used = self._advance(data, unescaped(data[:end] if end < len(data) else data), end)
        self._offset += used
        self._rest = data[used:]

    def close(self) -> dict[str, bytes | LongValue]:
        """The wanted values, as they are written, after the last piece. Raises MalformedBody."""
        if self._state == START and not self._rest:
            raise MalformedBody("body is empty, a JSON object is needed")
        if self._state != END or self._rest:
            length = self._offset + len(self._rest)
            raise MalformedBody(f"body is not valid JSON: it ends in the middle of a value (byte {length})")
        return self._values

    def _advance(self, data: bytes, text: bytes, end: int) -> int:
        """Read on from the start of `data` (`text` is the same without escapes), and say how far that was possible."""
        position = 0
        while True:
            state = self._state
            if state == INSIDE:
                position = self._inside(data, text, position, position)
                if self._state == INSIDE:
                    return position
                continue
            position = _space(text, position).end()  # type: ignore[union-attr]
            if position == end:
                return position
            first = text[position]
            if state == VALUE:
                position = self._value(data, text, position, end)
                if self._state == VALUE:
                    return position
            elif state == COLON:
                if first != COLON_SIGN:
                    raise self._malformed("a colon was expected", position)
                self._state = VALUE
                position += 1
            elif state == COMMA:
                if first == COMMA_SIGN:
                    self._state = KEY
                elif first == CLOSE_BRACE:
                    self._state = END
                else:
                    raise self._malformed("a comma or } was expected", position)
                position += 1
            elif state in (KEY, FIRST_KEY):
                position = self._key(data, text, position, end)
                if self._state == state:
                    return position
            elif state == START:
                if first == OPEN_BRACE:
                    self._state = FIRST_KEY
                    position += 1
                elif self._offset + position == 0 and _BOM.startswith(data[:3]):
                    if end < 3:
                        return 0
                    position = 3
                else:
                    raise MalformedBody("body must be a JSON object, which starts with {")
            else:
                raise self._malformed("the object has ended before", position)

    def _key(self, data: bytes, text: bytes, position: int, end: int) -> int:
        if text[position] == CLOSE_BRACE and self._state == FIRST_KEY:
            self._state = END
            return position + 1
        skipped = self._skip(text, position).end()  # type: ignore[union-attr]
        if skipped > position:
            self._state = KEY
            position = _space(text, skipped).end()  # type: ignore[union-attr]
            if position == end:
                return position
        if text[position] != QUOTE:
            raise self._malformed("a key in double quotes was expected", position)
        close = text.find(b'"', position + 1)
        if (close if close >= 0 else end) - position - 1 > self.limit:
            raise self._malformed(f"a key is longer than {self.limit} bytes", position)
        if close < 0:
            return position
        key = data[position + 1 : close]
        self._name = self._names.get(key)
        if b"\\" in text[position:close]:
            try:
                self._name = self._names.get(msgspec.json.decode(b'"' + key + b'"', type=str).encode())
            except (msgspec.DecodeError, UnicodeEncodeError):
                raise self._malformed("a key is not a string", position) from None
            self._count(position)
        elif self._name is not None:
            self._count(position)
        self._state = COLON
        return close + 1

    def _value(self, data: bytes, text: bytes, position: int, end: int) -> int:
        first = text[position]
        if first in b'"[{':
            self._in_string = first == QUOTE
            self._depth = 1
            if first != QUOTE:
                self._depth = 2
                self._count(position)
            self._state = INSIDE
            self._kind = chr(first)
            self._start = self._offset + position
            self._length = 0
            self._parts = []
            self._meter = None
            if self._name in self._metered:
                self._meter = InputMeter() if self._name == self._listed else TextMeter()
            return self._inside(data, text, position + 1, position)
        word = _word(text, position).end()  # type: ignore[union-attr]
        if word - position > self.limit:
            raise self._malformed(f"a number is longer than {self.limit} bytes", position)
        if word == end:
            return position
        if not _is_scalar(text, position, word):
            raise self._malformed("invalid value", position)
        if self._name is not None:
            self._values[self._name] = data[position:word]
            self.spans[self._name] = (self._offset + position, self._offset + word)
        self._state = COMMA
        return word

    def _inside(self, data: bytes, text: bytes, position: int, begin: int) -> int:
        """Go on in a string, array or object that is a value; `begin` is where it starts in `data`, or goes on.

        Where it ends is looked for in blocks: twice as large after each that it does not end in, smaller again in the
        one where it does, and sign by sign in the last. So the work is proportional to the length of the value.
        """
        end = len(text)
        block = FIRST_BLOCK
        near = False
        while position < end:
            if self._in_string:
                close = text.find(b'"', position)
                if close < 0:
                    position = end
                    break
                position = close + 1
                self._in_string = False
                if self._depth == 1:
                    return self._finish(data, begin, position)
                continue
            stop = min(position + block, end)
            change, lowest, in_string = _depths(text[position:stop], False)
            if self._depth + lowest > 1:
                self._depth += change
                self._in_string = in_string
                position = stop
                if near:
                    block = max(SMALLEST_BLOCK, block // 2)
                else:
                    block *= 2
            elif block > SMALLEST_BLOCK:
                near = True
                block //= 2
            else:
                return self._finish(data, begin, self._last_sign(text, position))
        self._take(data[begin:position])
        return position

    def _last_sign(self, text: bytes, position: int) -> int:
        """Just after the bracket that closes the value, which is near."""
        in_string = False
        for match in _signs(text, position):
            sign = text[match.start()]
            if sign == QUOTE:
                in_string = not in_string
            elif not in_string:
                self._depth += 1 if sign in b"[{" else -1
                if self._depth == 1:
                    return match.end()
        raise AssertionError("a block in which the value ends has no end of it")

    def _take(self, piece: bytes) -> None:
        if self._name is None:
            return
        self._length += len(piece)
        if self._meter is not None:
            self._meter.feed(piece)
        if self._length > self.limit:
            self._parts = None
        elif self._parts is not None:
            self._parts.append(piece)

    def _finish(self, data: bytes, begin: int, position: int) -> int:
        self._take(data[begin:position])
        self._state = COMMA
        name = self._name
        if name is not None:
            if self._parts is None:
                meter = self._meter
                tokens = 0 if meter is None else meter.tokens
                sequences = meter.sequences if isinstance(meter, InputMeter) else 1
                self._values[name] = LongValue(self._kind, self._length, tokens, sequences)
            else:
                self._values[name] = b"".join(self._parts)
            self.spans[name] = (self._start, self._offset + position)
        self._parts = None
        self._meter = None
        return position

    def _count(self, position: int) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise self._malformed(f"more than {MOST_MEMBERS} fields at the top level", position)

    def _malformed(self, what: str, position: int) -> MalformedBody:
        return MalformedBody(f"body is not valid JSON: {what} (byte {self._offset + position})")


MODEL = ("model",)


def model_span(body: bytes, path: Sequence[str] = MODEL) -> tuple[int, int] | None:
    """Where the model's name stands, with its quotes; None when there is no such string.

    `body` is a request, a plain answer or the data of an event; `path` are the keys that lead to it.
    """
    fields = JSONFields(path[:1])
    try:
        fields.feed(body)
        fields.close()
    except MalformedBody:
        return None
    span = fields.spans.get(path[0])
    if span is None:
        return None
    start, end = span
    inner = string_span(body[start:end], path[1:])
    return None if inner is None else (start + inner[0], start + inner[1])


def string_span(value: bytes, path: Sequence[str]) -> tuple[int, int] | None:
    """Where in a JSON value the string at `path` stands, with its quotes; None when there is no such string."""
    if path:
        return model_span(value, path)
    return (0, len(value)) if value[0] == QUOTE else None


def replace_model(body: bytes, model: str, path: Sequence[str] = MODEL) -> bytes:
    """The body with another model; unchanged when it names none. All other bytes stay as they are."""
    span = model_span(body, path)
    if span is None:
        return body
    return body[: span[0]] + msgspec.json.encode(model) + body[span[1] :]
