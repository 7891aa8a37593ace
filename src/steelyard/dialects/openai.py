"""The OpenAI API: chat, completions, responses, embeddings, images, reranking and classification.

Audio is in `audio.py`. vLLM, SGLang, llama.cpp, TEI and others serve the same paths, with a few of their own.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final
from urllib.parse import quote_plus, unquote_plus

from msgspec import Raw

from steelyard.core.work import Work
from steelyard.dialects.body import (
    LARGEST_SIDE,
    LONGEST_NAME,
    MOST_IMAGES,
    MOST_STEPS,
    AnswerReader,
    BodyReader,
    longer,
    size,
)
from steelyard.dialects.json_operation import JSONOperation, T
from steelyard.dialects.openai_fields import (
    NOTHING,
    Answer,
    ChatFields,
    CompletionFields,
    ImageFields,
    InputFields,
    ResponseFields,
    SpeechFields,
    UsageFields,
)
from steelyard.dialects.operation import Operation, Usage
from steelyard.dialects.text import InputMeter, prompt_tokens

COMPLETIONS_MAX_TOKENS: Final = 16
"""What OpenAI, vLLM and SGLang take when a completion gives no limit. A chat without one may fill the context."""
IMAGE_SIDE: Final = 1024
"""Pixels, when an image request names no size, or `auto`: the default of the API."""

_QUERY_MODEL: Final = re.compile(rb"[?&]model=([^&#]*)")
_SIZE: Final = re.compile(r"\s*(\d{1,9})\s*[xX×*]\s*(\d{1,9})\s*\Z")


def usage_of(fields: UsageFields) -> Usage | None:
    """None when it counts no tokens (transcriptions are billed by the second)."""
    prompt = fields.input_tokens if fields.prompt_tokens is None else fields.prompt_tokens
    completion = fields.output_tokens if fields.completion_tokens is None else fields.completion_tokens
    if prompt is None:
        if completion is None and fields.total_tokens is None:
            return None
        prompt = max(0, (fields.total_tokens or 0) - (completion or 0))
    details = fields.prompt_tokens_details or fields.input_tokens_details
    cached = None if details is None else details.cached_tokens
    return Usage(size(prompt, 0), size(completion, 0), size(cached, 0))


_read_answer: Final = AnswerReader(Answer).read


def answer_usage(body: bytes) -> Usage | None:
    """The usage in a plain answer."""
    answer = _read_answer(body)
    return usage_of(answer.usage) if answer is not None and answer.usage is not None else None


def session_fields(prompt_cache_key: str | None, user: str | None) -> dict[str, str]:
    """What may serve as a session key."""
    fields = {}
    if prompt_cache_key:
        fields["prompt_cache_key"] = prompt_cache_key
    if user:
        fields["user"] = user
    return fields


class OpenAIOperation(Operation):
    """A path of the API of whose request nothing needs to be known."""

    __slots__ = ()
    tells_usage: ClassVar[bool] = True

    def usage(self, body: bytes) -> Usage | None:
        return answer_usage(body)


class Realtime(OpenAIOperation):
    """GET /v1/realtime: a WebSocket of events and sound. The model stands in the query."""

    __slots__ = ()

    def read(self, body: bytes, content_type: bytes, target: bytes) -> Work:
        found = _QUERY_MODEL.search(target)
        model = None if found is None else unquote_plus(found[1].decode("latin-1"), errors="replace")
        if model is not None and len(model) > LONGEST_NAME:
            raise longer("model")
        return Work("openai", self.name, model or None, stream=True)

    def replace_target(self, target: bytes, model: str) -> bytes:
        found = _QUERY_MODEL.search(target)
        if found is None:
            return target
        return target[: found.start(1)] + quote_plus(model).encode("ascii") + target[found.end(1) :]


class OpenAIJSONOperation(JSONOperation[T]):
    """A path of the API whose request is a JSON object, and whose answer may tell its usage."""

    __slots__ = ()
    tells_usage: ClassVar[bool] = True

    def usage(self, body: bytes) -> Usage | None:
        return answer_usage(body)


class Chat(OpenAIJSONOperation[ChatFields]):
    """POST /v1/chat/completions. Tools are part of the prompt."""

    __slots__ = ()
    reader: ClassVar = BodyReader(ChatFields)
    prompts: ClassVar = ("messages", "tools")

    def fill(self, work: Work, fields: ChatFields) -> None:
        work.model = fields.model
        work.prompt_tokens = prompt_tokens(fields.messages)
        if fields.tools is not NOTHING:
            work.prompt_tokens += prompt_tokens(fields.tools)
        if fields.stream:
            work.stream = True
        limit = fields.max_completion_tokens or fields.max_tokens
        if limit is not None:
            work.max_tokens = size(limit, 0)
        if fields.n is not None:
            work.samples = size(fields.n, 1)
        if fields.store or fields.background:
            work.repeatable = False
        if fields.user or fields.prompt_cache_key:
            work.session_fields = session_fields(fields.prompt_cache_key, fields.user)


class Completions(OpenAIJSONOperation[CompletionFields]):
    """POST /v1/completions. A list of prompts is as many sequences."""

    __slots__ = ()
    reader: ClassVar = BodyReader(CompletionFields)
    prompts: ClassVar = ("prompt",)
    listed: ClassVar = "prompt"

    def fill(self, work: Work, fields: CompletionFields) -> None:
        work.model = fields.model
        work.prompt_tokens, sequences = measure_input(fields.prompt)
        work.stream = bool(fields.stream)
        work.max_tokens = size(fields.max_tokens, COMPLETIONS_MAX_TOKENS)
        work.samples = size(sequences * max(size(fields.n, 1), size(fields.best_of, 1)), 1)
        if fields.store or fields.background:
            work.repeatable = False
        if fields.user or fields.prompt_cache_key:
            work.session_fields = session_fields(fields.prompt_cache_key, fields.user)


def measure_input(raw: Raw) -> tuple[int, int]:
    """Tokens and sequences of a prompt: see InputMeter."""
    meter = InputMeter()
    meter.feed(bytes(raw))
    return meter.tokens, meter.sequences


class Responses(OpenAIJSONOperation[ResponseFields]):
    """POST /v1/responses. Not repeatable: an answer is stored unless the request says otherwise."""

    __slots__ = ()
    reader: ClassVar = BodyReader(ResponseFields)
    prompts: ClassVar = ("input", "instructions", "tools")

    def fill(self, work: Work, fields: ResponseFields) -> None:
        work.model = fields.model
        work.prompt_tokens = sum(map(prompt_tokens, (fields.input, fields.instructions, fields.tools)))
        work.stream = bool(fields.stream)
        work.max_tokens = size(fields.max_output_tokens, 0)
        work.session_fields = session_fields(fields.prompt_cache_key, fields.user)


class Encode(OpenAIJSONOperation[InputFields]):
    """Requests that only read their input: embeddings, rerank, score, classify, pooling, tokenize, moderations."""

    __slots__ = ()
    reader: ClassVar = BodyReader(InputFields)
    prompts: ClassVar = ("input", "prompt", "messages", "query", "documents", "texts", "text_1", "text_2")
    listed: ClassVar = "input"

    def fill(self, work: Work, fields: InputFields) -> None:
        work.model = fields.model
        if fields.input is not NOTHING:
            work.prompt_tokens, work.samples = measure_input(fields.input)
        others = (fields.prompt, fields.messages, fields.query, fields.documents, fields.texts, fields.text_1)
        work.prompt_tokens += sum(map(prompt_tokens, (*others, fields.text_2)))
        if fields.user:
            work.session_fields = {"user": fields.user}


class Images(OpenAIJSONOperation[ImageFields]):
    """POST /v1/images/generations."""

    __slots__ = ()
    reader: ClassVar = BodyReader(ImageFields)

    def fill(self, work: Work, fields: ImageFields) -> None:
        work.model = fields.model
        work.images = size(fields.n, 1, MOST_IMAGES)
        work.width, work.height = image_size(fields.size)
        work.steps = size(fields.num_inference_steps, 0, MOST_STEPS)
        work.stream = bool(fields.stream)
        if fields.user:
            work.session_fields = {"user": fields.user}


def image_size(text: str | None) -> tuple[int, int]:
    """Width and height in pixels of "1024x1536"; of what is no such size, the default (the node will judge it)."""
    match = _SIZE.match(text) if text else None
    if match is None:
        return IMAGE_SIDE, IMAGE_SIDE
    return size(int(match[1]), IMAGE_SIDE, LARGEST_SIDE), size(int(match[2]), IMAGE_SIDE, LARGEST_SIDE)


class Speech(JSONOperation[SpeechFields]):
    """POST /v1/audio/speech: text into sound, in pieces as it is made."""

    __slots__ = ()
    reader: ClassVar = BodyReader(SpeechFields)
    prompts: ClassVar = ("input",)

    def fill(self, work: Work, fields: SpeechFields) -> None:
        work.model = fields.model
        work.prompt_tokens = prompt_tokens(fields.input)
