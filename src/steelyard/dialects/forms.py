"""Operations of OpenAI's API with a form and a file: transcription and translation of audio, edits of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from steelyard.core.work import Work
from steelyard.dialects.audio import seconds
from steelyard.dialects.body import LONGEST_NAME, MOST_IMAGES, MOST_STEPS, longer, size
from steelyard.dialects.multipart import LIMIT, MultipartFields, Part
from steelyard.dialects.openai import answer_usage, image_size
from steelyard.dialects.operation import FieldScanner, MalformedBody, Operation, Usage
from steelyard.dialects.splice import splice

TRUE: Final = frozenset({"true", "1", "on", "yes", "t", "y"})
FALSE: Final = frozenset({"false", "0", "off", "no", "f", "n", ""})
"""What pydantic takes for a boolean in a form."""


class FormOperation(Operation):
    """An operation whose body is multipart/form-data. The fields may stand before or after the file."""

    __slots__ = ()
    tells_usage: ClassVar[bool] = True

    def __init__(self, name: str, *, repeatable: bool = False) -> None:
        super().__init__("openai", name, body="multipart", repeatable=repeatable)

    def read(self, body: bytes, content_type: bytes, target: bytes) -> Work:
        scanner = FormScanner(self, content_type)
        scanner.feed(body)
        return scanner.work()

    def scanner(self, content_type: bytes = b"") -> FormScanner:
        return FormScanner(self, content_type)

    def replace_model(self, body: bytes, content_type: bytes, model: str) -> bytes:
        fields = MultipartFields(content_type)
        fields.feed(body)
        return b"".join(splice([body], model_spans(fields.close()), model.encode()))

    def fill(self, work: Work, parts: Mapping[str, Part]) -> None:
        """Write what the form says, beyond model and stream, into the Work."""
        raise NotImplementedError

    def usage(self, body: bytes) -> Usage | None:
        return answer_usage(body)


class FormScanner(FieldScanner):
    """Reads a form that arrives in pieces. Of files, only the first bytes and the size are kept."""

    __slots__ = ("_fields", "_operation", "body_bytes")

    def __init__(self, operation: FormOperation, content_type: bytes) -> None:
        self._operation = operation
        self._fields = MultipartFields(content_type)
        self.body_bytes = 0

    def feed(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        self._fields.feed(piece)

    def work(self) -> Work:
        operation = self._operation
        # Of fields with the same name the last one counts, as in the forms of Starlette.
        parts = {part.name: part for part in self._fields.close()}
        work = Work(
            operation.dialect,
            operation.name,
            name(parts.get("model")),
            stream=flag(parts.get("stream")),
            repeatable=operation.repeatable,
            body_bytes=self.body_bytes,
        )
        user = name(parts.get("user"))
        if user:
            work.session_fields = {"user": user}
        operation.fill(work, parts)
        return work

    def model_spans(self) -> list[tuple[int, int]]:
        return model_spans(self._fields.close())

    def written(self, model: str) -> bytes:
        return model.encode()


def model_spans(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """Where in the body the fields stand that name the model."""
    return [(part.offset, part.offset + part.size) for part in parts if part.name == "model"]


class Recognition(FormOperation):
    """POST /v1/audio/transcriptions and /v1/audio/translations."""

    __slots__ = ()

    def fill(self, work: Work, parts: Mapping[str, Part]) -> None:
        file = parts.get("file")
        if file is not None:
            work.audio_seconds = seconds(file.start, file.size, file.filename or "")


class ImageEdits(FormOperation):
    """POST /v1/images/edits and /v1/images/variations."""

    __slots__ = ()

    def fill(self, work: Work, parts: Mapping[str, Part]) -> None:
        work.width, work.height = image_size(name(parts.get("size")))
        work.images = size(number(parts.get("n")), 1, MOST_IMAGES)
        work.steps = size(number(parts.get("num_inference_steps")), 0, MOST_STEPS)


def name(part: Part | None) -> str | None:
    """A form field that becomes a name or a key; absent is None. Raises MalformedBody."""
    if part is None:
        return None
    if part.size > LIMIT or len(part.text) > LONGEST_NAME:
        raise longer(part.name)
    return part.text


def flag(part: Part | None) -> bool:
    """A form field as a boolean; absent is False. Raises MalformedBody."""
    if part is None:
        return False
    text = part.text.strip().lower()
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise MalformedBody(f"{part.name} must be true or false, not {part.text[:40]!r}")


def number(part: Part | None) -> int | None:
    """A form field as an integer. Raises MalformedBody."""
    if part is None or not part.text.strip():
        return None
    try:
        return int(part.text)
    except ValueError:
        raise MalformedBody(f"{part.name} must be an integer, not {part.text[:40]!r}") from None
