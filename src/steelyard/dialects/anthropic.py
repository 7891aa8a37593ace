"""The Anthropic Messages API, as Anthropic, vLLM, SGLang, llama.cpp and Ollama serve it."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from steelyard.core.refusal import STATUSES
from steelyard.core.work import Work
from steelyard.dialects.anthropic_fields import Answer, MessageFields, UsageFields
from steelyard.dialects.body import AnswerReader, BodyReader, size
from steelyard.dialects.json_operation import JSONOperation
from steelyard.dialects.operation import Operation, Usage
from steelyard.dialects.text import prompt_tokens

ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The API's own words; it answers an overload with status 529, the gateway with 503."""


def usage_of(fields: UsageFields) -> Usage:
    """`input_tokens` counts only what no cache had to do with; the prompt is the sum of the three."""
    cached = size(fields.cache_read_input_tokens, 0)
    prompt = size(fields.input_tokens, 0) + size(fields.cache_creation_input_tokens, 0) + cached
    return Usage(prompt, size(fields.output_tokens, 0), cached)


_read_answer: Final = AnswerReader(Answer).read


def anthropic_error(status: int, code: str, message: str, request_id: str) -> bytes:
    """Clients go by `type`; `code`, which the API does not have, is the gateway's own."""
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": message, "code": code}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


def anthropic_stream_error(code: str, message: str) -> bytes:
    """The same as an event."""
    return b"event: error\ndata: " + anthropic_error(STATUSES.get(code, 502), code, message, "") + b"\n\n"


class AnthropicOperation(Operation):
    """A path under /v1/messages of whose request nothing needs to be known."""

    __slots__ = ()

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return anthropic_error(status, code, message, request_id)

    def stream_error(self, code: str, message: str) -> bytes:
        return anthropic_stream_error(code, message)


class Messages(JSONOperation[MessageFields]):
    """POST /v1/messages and /v1/messages/count_tokens. `metadata.user_id` is a session field by the name of `user`."""

    __slots__ = ()
    tells_usage: ClassVar[bool] = True
    reader: ClassVar = BodyReader(MessageFields)
    prompts: ClassVar = ("messages", "system", "tools")

    def fill(self, work: Work, fields: MessageFields) -> None:
        work.model = fields.model
        work.prompt_tokens = prompt_tokens(fields.messages) + prompt_tokens(fields.system) + prompt_tokens(fields.tools)
        if fields.stream:
            work.stream = True
        if fields.max_tokens is not None:
            work.max_tokens = size(fields.max_tokens, 0)
        if fields.metadata is not None and fields.metadata.user_id:
            work.session_fields = {"user": fields.metadata.user_id}

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        return anthropic_error(status, code, message, request_id)

    def stream_error(self, code: str, message: str) -> bytes:
        return anthropic_stream_error(code, message)

    def usage(self, body: bytes) -> Usage | None:
        answer = _read_answer(body)
        return usage_of(answer.usage) if answer is not None and answer.usage is not None else None
