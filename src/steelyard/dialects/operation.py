"""One operation of a dialect: how its request is read, and how errors and usage look in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from steelyard.core.refusal import STATUSES
from steelyard.core.work import Work

LARGE_BODY: Final = 128 * 1024
"""Bytes from which a body is read through `Operation.scanner()` as it arrives, not in one go: reading this much at
once takes at most about 1 ms, also when it is made to be slow."""


class MalformedBody(ValueError):
    """The request cannot be read. The message says what is wrong and where."""


@dataclass
class Usage:
    """What the node says a request has cost, in tokens."""

    prompt_tokens: int
    """All of the prompt, cached or not."""
    completion_tokens: int
    cached_tokens: int = 0
    """The part of the prompt that was in the prefix cache."""


class FieldScanner(ABC):
    """Reads a large body piece by piece, so that no single step holds the loop."""

    __slots__ = ()

    @abstractmethod
    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body. Raises MalformedBody."""

    @abstractmethod
    def work(self) -> Work:
        """The Work, after the last piece. Raises MalformedBody."""

    @abstractmethod
    def model_spans(self) -> list[tuple[int, int]]:
        """Where in the body the model's name stands, after `work`: offsets, in order. Empty when it is not there."""

    @abstractmethod
    def written(self, model: str) -> bytes:
        """A model's name as it stands there."""


class Operation:
    """One (method, path) of a dialect. Immutable, and shared by all requests.

    This base class reads nothing but the length: what is right where nothing is known of the body.
    """

    __slots__ = ("body", "dialect", "name", "repeatable")
    tells_usage: ClassVar[bool] = False
    """Whether `usage` can find something: where it cannot, nobody needs to keep the answer."""

    def __init__(self, dialect: str, name: str, *, body: str = "none", repeatable: bool = False) -> None:
        self.dialect = dialect
        self.name = name
        self.body = body
        """json, multipart, or none: nothing of the body is needed, it can be streamed without being read."""
        self.repeatable = repeatable
        """Whether executing it twice does no harm, as far as the path tells; `Work.repeatable` says it for sure."""

    def __repr__(self) -> str:
        return f"<Operation {self.dialect} {self.name}>"

    def read(self, body: bytes, content_type: bytes, target: bytes) -> Work:
        """What the request asks for.

        `body` is all of it (empty when `self.body` is none and it streams by), `content_type` the header's value or
        empty, `target` the path with its query. Raises MalformedBody.
        """
        return Work(self.dialect, self.name, repeatable=self.repeatable, body_bytes=len(body))

    def scanner(self, content_type: bytes = b"") -> FieldScanner | None:
        """A reader for a large body that arrives piece by piece; None when there is nothing to read.

        Raises MalformedBody when the content type already says that the body cannot be read.
        """
        return None

    def replace_model(self, body: bytes, content_type: bytes, model: str) -> bytes:
        """The body with another model in the place where `read` found it; unchanged when there is none."""
        return body

    def replace_target(self, target: bytes, model: str) -> bytes:
        """The path and query with another model in the place where `read` found it; unchanged when it is elsewhere."""
        return target

    def error(self, status: int, code: str, message: str, request_id: str) -> bytes:
        """The JSON body of an error answer, in the dialect's shape."""
        return msgspec.json.encode(
            {"error": {"message": message, "type": error_type(status), "code": code, "param": None}}
        )

    def stream_error(self, code: str, message: str) -> bytes:
        """One SSE event that tells an error in the middle of a stream; to be sent where a line begins."""
        return b"data: " + self.error(STATUSES.get(code, 502), code, message, "") + b"\n\n"

    def usage(self, body: bytes) -> Usage | None:
        """The usage in a plain JSON answer; None when there is none, or the answer is not such JSON."""
        return None


def error_type(status: int) -> str:
    """The `type` of OpenAI's error object for an HTTP status."""
    if status == 429:
        return "rate_limit_error"
    if status >= 500:
        return "server_error"
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    return "invalid_request_error"
