"""API families: what is the model of a request, how heavy is it, is it a stream, and where does usage stand.

`recognise(method, path)` finds the Operation, whose `read` makes a Work of the body.
"""

from __future__ import annotations

import re
from typing import Final

from steelyard.dialects.anthropic import AnthropicOperation, Messages
from steelyard.dialects.fields import JSONFields, model_span, replace_model
from steelyard.dialects.forms import ImageEdits, Recognition
from steelyard.dialects.openai import (
    Chat,
    Completions,
    Encode,
    Images,
    OpenAIOperation,
    Realtime,
    Responses,
    Speech,
)
from steelyard.dialects.operation import LARGE_BODY, FieldScanner, MalformedBody, Operation, Usage
from steelyard.dialects.sdwebui import Pictures, WebUIOperation
from steelyard.dialects.triton import TritonOperation

__all__ = [
    "LARGE_BODY",
    "FieldScanner",
    "JSONFields",
    "MalformedBody",
    "Operation",
    "Usage",
    "model_span",
    "recognise",
    "replace_model",
]


def _encode(name: str, *paths: str) -> dict[tuple[str, str], Operation]:
    operation = Encode("openai", name, repeatable=True)
    return {("POST", path): operation for path in paths}


_MODELS: Final = OpenAIOperation("openai", "models", repeatable=True)

EXACT: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/v1/chat/completions"): Chat("openai", "chat", repeatable=True),
    ("POST", "/v1/completions"): Completions("openai", "completions", repeatable=True),
    ("POST", "/v1/responses"): Responses("openai", "responses"),
    ("POST", "/v1/images/generations"): Images("openai", "images", repeatable=True),
    ("POST", "/v1/images/edits"): ImageEdits("image_edits", repeatable=True),
    ("POST", "/v1/images/variations"): ImageEdits("image_variations", repeatable=True),
    ("POST", "/v1/audio/transcriptions"): Recognition("transcription", repeatable=True),
    ("POST", "/v1/audio/translations"): Recognition("translation", repeatable=True),
    ("POST", "/v1/audio/speech"): Speech("openai", "speech", repeatable=True),
    ("GET", "/v1/realtime"): Realtime("openai", "realtime"),
    ("GET", "/v1/models"): _MODELS,
    ("HEAD", "/v1/models"): _MODELS,
    **_encode("embeddings", "/v1/embeddings"),
    **_encode("rerank", "/rerank", "/v1/rerank", "/v2/rerank"),
    **_encode("score", "/score", "/v1/score"),
    **_encode("classify", "/classify", "/v1/classify"),
    **_encode("pooling", "/pooling"),
    **_encode("tokenize", "/tokenize"),
    **_encode("moderations", "/v1/moderations"),
    ("POST", "/v1/messages"): Messages("anthropic", "messages", repeatable=True),
    ("POST", "/v1/messages/count_tokens"): Messages("anthropic", "count_tokens", repeatable=True),
    ("POST", "/sdapi/v1/txt2img"): Pictures("sdwebui", "txt2img", repeatable=True),
    ("POST", "/sdapi/v1/img2img"): Pictures("sdwebui", "img2img", repeatable=True),
}
"""One look-up finds nearly every request."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# Of the others: the first prefix that fits. (prefix, operation when reading, operation when writing)
FAMILIES: Final[tuple[tuple[str, Operation, Operation], ...]] = (
    (
        "/v1/messages",
        AnthropicOperation("anthropic", "other", repeatable=True),
        AnthropicOperation("anthropic", "other"),
    ),
    ("/v1", OpenAIOperation("openai", "other", repeatable=True), OpenAIOperation("openai", "other")),
    ("/v2", TritonOperation("other", repeatable=True), TritonOperation("other")),
    ("/sdapi", WebUIOperation("sdwebui", "other", repeatable=True), WebUIOperation("sdwebui", "other")),
    ("/internal", WebUIOperation("sdwebui", "other", repeatable=True), WebUIOperation("sdwebui", "other")),
)
GENERIC: Final = Operation("generic", "other")

TRITON: Final[dict[str, Operation]] = {
    "infer": TritonOperation("infer"),
    "generate": TritonOperation("generate"),
    "generate_stream": TritonOperation("generate_stream", stream=True),
}
_TRITON_CALL: Final = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/(infer|generate|generate_stream)\Z")
_SLASHES: Final = re.compile("//+")


def recognise(method: str, path: str) -> Operation:
    """The Operation of a request; `path` is without its query. Never None: what nobody knows is `generic`.

    Double slashes and one at the end do not change what a request is; the path itself goes to the node as it came.
    A slash that is percent-encoded is not one.
    """
    operation = EXACT.get((method, path))
    if operation is not None:
        return operation
    if "//" in path or path.endswith("/"):
        path = _SLASHES.sub("/", path).rstrip("/")
        operation = EXACT.get((method, path))
        if operation is not None:
            return operation
    if method == "POST" and path.startswith("/v2/models/"):
        call = _TRITON_CALL.match(path)
        if call is not None:
            return TRITON[call[1]]
    for prefix, reading, writing in FAMILIES:
        if path.startswith(prefix) and (len(path) == len(prefix) or path[len(prefix)] == "/"):
            return reading if method in READING else writing
    return GENERIC
