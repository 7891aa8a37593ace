"""A Whisper server in the OpenAI shape, as speaches and faster-whisper-server are (model-servers 13)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from steelyard.emulator.audio import audio_seconds
from steelyard.emulator.engines.base import CardEngine, Refusal
from steelyard.emulator.exchange import Exchange
from steelyard.emulator.execution import Execution
from steelyard.emulator.memory import Card
from steelyard.emulator.multipart import BadForm, read_form
from steelyard.emulator.text import fingerprint, token

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

# Resident bytes by model size, from the README of openai/whisper (policy-science 3.4).
RESIDENT = {
    "tiny": 1_000_000_000,
    "base": 1_000_000_000,
    "small": 2_000_000_000,
    "medium": 5_000_000_000,
    "turbo": 6_000_000_000,
    "large": 10_000_000_000,
}
OVERHEAD_SECONDS = 0.3  # of a request, before the audio counts (3.4)
WORDS_PER_SECOND = 2.5  # of speech, 150 words a minute
SEGMENT_SECONDS = 30.0
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


class Whisper(CardEngine):
    # A thread computes the transcript; nobody tells it that the client has gone.
    cancels_on_disconnect = False
    health_paths: ClassVar[frozenset[str]] = frozenset({"/health"})

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(node)
        self.work = {
            "/v1/audio/transcriptions": self.transcribe,
            "/v1/audio/translations": self.transcribe,
        }
        self.plain = {
            ("GET", "/health"): lambda exchange: self.json(exchange, {"message": "OK"}),
            ("GET", "/v1/models"): self.model_list,
        }
        self.plain_patterns = [("GET", re.compile(r"/v1/models/(.+)"), self.one_model)]

    def make_card(self) -> Card:
        resident = self.profile.resident
        if resident is None:
            resident = max((_resident(model) for model in self.models), default=0)
        return Card(self.profile.gpu_memory, resident)

    def transcribe(self, exchange: Exchange, execution: Execution) -> None:
        request = exchange.request
        try:
            form = read_form(request.headers.get("content-type", ""), request.body)
        except BadForm as error:
            raise Refusal(400, str(error)) from None
        if "file" not in form or form["file"].filename is None:
            raise Refusal(422, "file: Field required", "file")
        if "model" not in form:
            raise Refusal(422, "model: Field required", "model")
        model = form["model"].text
        if model not in self.models:
            raise Refusal(404, f"The model `{model}` does not exist.", "model")
        shape = form["response_format"].text if "response_format" in form else "json"
        if shape not in FORMATS:
            raise Refusal(400, f"response_format must be one of {', '.join(FORMATS)}, not {shape!r}", "response_format")
        if "stream" in form and form["stream"].text.lower() in ("true", "1"):
            raise Refusal(400, "stream is not supported by this server", "stream")
        recording = form["file"].data
        seconds = audio_seconds(recording)
        language = "en"
        if "language" in form and request.path.endswith("transcriptions"):
            language = form["language"].text
        execution.model = model
        work = OVERHEAD_SECONDS + seconds / self.profile.audio_speed

        def respond() -> None:
            content_type, body = _transcript(shape, fingerprint(self.node.seed, recording), seconds, language)
            if isinstance(body, str):
                exchange.answer(200, body.encode(), content_type)
            else:
                self.json(exchange, body)

        self.run(exchange, execution, self.profile.window_memory, work, respond)

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        kinds = {
            400: "BadRequestError",
            404: "NotFoundError",
            422: "UnprocessableEntityError",
            503: "Service Unavailable",
        }
        error = {
            "message": refusal.message,
            "type": kinds.get(refusal.status, "InternalServerError"),
            "param": refusal.param,
            "code": refusal.status,
        }
        self.json(exchange, {"error": error}, refusal.status)


def _resident(model: str) -> int:
    for size, bytes_needed in RESIDENT.items():
        if size in model.lower():
            return bytes_needed
    return RESIDENT["large"]


def _transcript(shape: str, print32: int, seconds: float, language: str) -> tuple[str, str | dict[str, Any]]:
    segments: list[dict[str, Any]] = []
    index = 0
    start = 0.0
    while start < seconds or not segments:
        end = min(start + SEGMENT_SECONDS, seconds)
        words = max(1, round((end - start) * WORDS_PER_SECOND))
        text = "".join(token(print32, index + each) for each in range(words)).strip()
        segments.append({"id": len(segments), "start": round(start, 2), "end": round(end, 2), "text": text})
        index += words
        start += SEGMENT_SECONDS
    text = " ".join(str(segment["text"]) for segment in segments)
    usage = {"type": "duration", "seconds": -int(-seconds // 1)}
    if shape == "json":
        return "application/json", {"text": text, "usage": usage}
    if shape == "verbose_json":
        return "application/json", {
            "task": "transcribe",
            "language": language,
            "duration": round(seconds, 2),
            "text": text,
            "segments": segments,
            "usage": usage,
        }
    if shape == "text":
        return "text/plain; charset=utf-8", text + "\n"
    mark = "," if shape == "srt" else "."
    lines = ["WEBVTT\n"] if shape == "vtt" else []
    for segment in segments:
        number = f"{segment['id'] + 1}\n" if shape == "srt" else ""
        lines.append(
            f"{number}{_stamp(segment['start'], mark)} --> {_stamp(segment['end'], mark)}\n{segment['text']}\n"
        )
    return "text/plain; charset=utf-8", "\n".join(lines)


def _stamp(seconds: Any, mark: str) -> str:
    milliseconds = round(float(seconds) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
