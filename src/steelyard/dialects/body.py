"""Reading a JSON body: only the fields that are needed, and errors that name the field."""

from __future__ import annotations

import re
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from steelyard.dialects.operation import MalformedBody

BOM: Final = b"\xef\xbb\xbf"
BACKSLASH: Final = 0x5C
LARGEST_SIZE: Final = 1 << 30
"""Sizes are cut to this, so that no number of a client makes the arithmetic overflow."""
LARGEST_SIDE: Final = 1 << 14
"""Of a picture, in pixels."""
MOST_STEPS: Final = 10_000
MOST_IMAGES: Final = 10_000
"""Far beyond what a node computes, and small enough for the seconds of all requests of a node to be summed exactly to
the microsecond: a request that claims more must not hide the others in the sum."""
LONGEST_NAME: Final = 256
"""Characters of a model's name, of a session key, and of what else becomes a key or a label."""
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
"""A text of a body that becomes such a name; the decoder checks its length on the way."""

T = TypeVar("T", bound=msgspec.Struct)

_MISMATCH: Final = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_TOO_LONG: Final = re.compile(r"Expected `str` of length <= (?P<limit>\d+) - at `\$\.(?P<path>[^`]*)`")
_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "bool": "true or false",
    "float": "a number",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


class BodyReader(Generic[T]):
    """Decodes JSON objects into one msgspec Struct.

    As lenient as the engines' own readers: unknown fields are skipped (but must be valid JSON), of duplicate keys the
    last one wins, numbers and booleans may be written as strings, a UTF-8 byte order mark is allowed.
    """

    __slots__ = ("_decode", "struct")

    def __init__(self, struct: type[T]) -> None:
        self.struct = struct
        self._decode = msgspec.json.Decoder(struct, strict=False).decode

    def read(self, body: bytes) -> T:
        """The Struct. Raises MalformedBody."""
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            if not body.startswith(BOM):
                raise explained(body, error) from None
        body = body[len(BOM) :]
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise explained(body, error) from None


def explained(body: bytes, error: Exception) -> MalformedBody:
    """The error of msgspec in our words."""
    if not body.strip():
        return MalformedBody("body is empty, a JSON object is needed")
    if isinstance(error, RecursionError):
        return MalformedBody("body is nested too deeply")
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        text = text.removeprefix("JSON is malformed: ")
        if "truncated" in text:
            text = f"it ends in the middle of a value (byte {len(body)})"
        return MalformedBody(f"body is not valid JSON: {text}")
    too_long = _TOO_LONG.match(text)
    if too_long is not None:
        return longer(too_long["path"], int(too_long["limit"]))
    mismatch = _MISMATCH.match(text)
    if mismatch is None:
        return MalformedBody(f"body: {text[0].lower()}{text[1:].replace('`$.', '`')}")
    wanted = " or ".join(_WORDS.get(name, name) for name in mismatch["wanted"].split(" | ") if name != "null")
    got = _WORDS.get(mismatch["got"], mismatch["got"])
    return MalformedBody(f"{mismatch['path'] or 'body'} must be {wanted}, not {got}")


def longer(name: str, limit: int = LONGEST_NAME) -> MalformedBody:
    """The error of a text that has more than `limit` characters."""
    return MalformedBody(f"{name} is longer than {limit} characters")


class AnswerReader(Generic[T]):
    """Decodes a plain answer into a Struct with one field, of which the answer is full of others: see `read`."""

    __slots__ = ("_decode", "_key")

    def __init__(self, struct: type[T]) -> None:
        (field,) = struct.__struct_encode_fields__
        self._decode = msgspec.json.Decoder(struct).decode
        self._key = b'"%b"' % field.encode()

    def read(self, body: bytes) -> T | None:
        """The Struct; None when the answer is not such JSON.

        The engines write the usage last, behind all of the text. So the last member of that name is tried first,
        together with what follows it: that is an object only if it is a member of the outermost one.
        """
        start = body.rfind(self._key)
        if start > 0 and body[start - 1] != BACKSLASH:
            try:
                return self._decode(b"{" + body[start:])
            except (msgspec.MsgspecError, RecursionError):
                pass
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return None


def size(value: int | None, default: int, most: int = LARGEST_SIZE) -> int:
    """A count or a length of the body: `default` when absent or not positive, bounded above."""
    if value is None or value <= 0:
        return default
    return value if value < most else most
