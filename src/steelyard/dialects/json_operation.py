"""What the operations with a JSON body share."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from steelyard.core.work import Work
from steelyard.dialects.body import BodyReader, size
from steelyard.dialects.fields import LIMIT, JSONFields, LongValue, replace_model, string_span
from steelyard.dialects.operation import FieldScanner, MalformedBody, Operation

T = TypeVar("T", bound=msgspec.Struct)


class JSONOperation(Operation, Generic[T]):
    """An operation whose body is one JSON object. A subclass names the fields (a Struct) and makes them a Work."""

    __slots__ = ()

    reader: ClassVar[BodyReader[msgspec.Struct]]
    prompts: ClassVar[tuple[str, ...]] = ()
    """The fields that hold prompts: of type msgspec.Raw, and possibly large."""
    listed: ClassVar[str] = ""
    """The one of them whose value may be a list of prompts."""
    model_path: ClassVar[tuple[str, ...]] = ("model",)
    """The keys that lead to the model's name."""
    longest: ClassVar[int] = LIMIT
    """Bytes up to which a value is kept that is no prompt, when the body comes in pieces."""

    def __init__(self, dialect: str, name: str, *, repeatable: bool = False) -> None:
        super().__init__(dialect, name, body="json", repeatable=repeatable)

    def read(self, body: bytes, content_type: bytes, target: bytes) -> Work:
        work = Work(self.dialect, self.name)
        work.repeatable = self.repeatable
        work.body_bytes = len(body)
        fields = self.reader.read(body)
        self.fill(work, fields)  # type: ignore[arg-type]
        work.asked_model = work.model
        return work

    def scanner(self, content_type: bytes = b"") -> FieldScanner:
        return JSONScanner(self, self.reader.struct.__struct_encode_fields__)

    def replace_model(self, body: bytes, content_type: bytes, model: str) -> bytes:
        return replace_model(body, model, self.model_path)

    def fill(self, work: Work, fields: T) -> None:
        """Write what the fields say into the Work: model, sizes, stream, repeatable, session fields."""
        raise NotImplementedError


class JSONScanner(FieldScanner):
    """Reads the same fields as `JSONOperation.read`, from a body that arrives in pieces."""

    __slots__ = ("_fields", "_operation", "body_bytes")

    def __init__(self, operation: JSONOperation[Any], names: tuple[str, ...]) -> None:
        self._operation = operation
        self._fields = JSONFields(names, limit=operation.longest, metered=operation.prompts, listed=operation.listed)
        self.body_bytes = 0

    def feed(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        self._fields.feed(piece)

    def work(self) -> Work:
        operation = self._operation
        parts: list[bytes] = []
        tokens = 0
        sequences = 1
        for name, value in self._fields.close().items():
            if isinstance(value, LongValue):
                if name not in operation.prompts:
                    raise MalformedBody(f"{name} is longer than {self._fields.limit} bytes")
                tokens += value.tokens - EMPTY_TOKENS
                sequences *= value.sequences
                value = EMPTY[value.kind]
            else:
                self._check(name, value)
            parts.append(b'"%b":%b' % (name.encode(), value))
        # The few small values are decoded as if they were the body, by the same code.
        work = operation.read(b"{" + b",".join(parts) + b"}", b"", b"")
        work.prompt_tokens += tokens
        work.samples = size(work.samples * sequences, 1)
        work.body_bytes = self.body_bytes
        return work

    def model_spans(self) -> list[tuple[int, int]]:
        fields, path = self._fields, self._operation.model_path
        value, span = fields.close().get(path[0]), fields.spans.get(path[0])
        if span is None or not isinstance(value, bytes):
            return []
        inner = string_span(value, path[1:])
        return [] if inner is None else [(span[0] + inner[0], span[0] + inner[1])]

    def written(self, model: str) -> bytes:
        return msgspec.json.encode(model)

    def _check(self, name: str, value: bytes) -> None:
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            at = self._fields.spans[name][0]
            raise MalformedBody(f"body is not valid JSON: the value of {name} (from byte {at})") from None


EMPTY: Final = {"[": b"[]", "{": b"{}", '"': b'""'}
"""What stands in for a value that was too long to keep: its type is checked, its size is known already."""
EMPTY_TOKENS: Final = 1
"""What `prompt_tokens` says of those."""
