"""Which operation a method and a path are."""

from __future__ import annotations

import pytest

from steelyard.dialects import recognise

KNOWN = [
    # method, path, dialect, name, body, repeatable
    ("POST", "/v1/chat/completions", "openai", "chat", "json", True),
    ("POST", "/v1/completions", "openai", "completions", "json", True),
    ("POST", "/v1/responses", "openai", "responses", "json", False),
    ("POST", "/v1/embeddings", "openai", "embeddings", "json", True),
    ("POST", "/v1/images/generations", "openai", "images", "json", True),
    ("POST", "/v1/images/edits", "openai", "image_edits", "multipart", True),
    ("POST", "/v1/audio/transcriptions", "openai", "transcription", "multipart", True),
    ("POST", "/v1/audio/translations", "openai", "translation", "multipart", True),
    ("POST", "/v1/audio/speech", "openai", "speech", "json", True),
    ("POST", "/rerank", "openai", "rerank", "json", True),
    ("POST", "/v1/rerank", "openai", "rerank", "json", True),
    ("POST", "/v2/rerank", "openai", "rerank", "json", True),
    ("POST", "/score", "openai", "score", "json", True),
    ("POST", "/classify", "openai", "classify", "json", True),
    ("POST", "/pooling", "openai", "pooling", "json", True),
    ("POST", "/tokenize", "openai", "tokenize", "json", True),
    ("GET", "/v1/models", "openai", "models", "none", True),
    ("HEAD", "/v1/models", "openai", "models", "none", True),
    ("GET", "/v1/models/m", "openai", "other", "none", True),
    ("POST", "/v1/files", "openai", "other", "none", False),
    ("DELETE", "/v1/responses/r1", "openai", "other", "none", False),
    ("POST", "/v1/messages", "anthropic", "messages", "json", True),
    ("POST", "/v1/messages/count_tokens", "anthropic", "count_tokens", "json", True),
    ("POST", "/v1/messages/batches", "anthropic", "other", "none", False),
    ("POST", "/sdapi/v1/txt2img", "sdwebui", "txt2img", "json", True),
    ("POST", "/sdapi/v1/img2img", "sdwebui", "img2img", "json", True),
    ("POST", "/sdapi/v1/options", "sdwebui", "other", "none", False),
    ("GET", "/internal/ping", "sdwebui", "other", "none", True),
    ("POST", "/v2/models/m/infer", "triton", "infer", "none", False),
    ("POST", "/v2/models/m/versions/3/infer", "triton", "infer", "none", False),
    ("POST", "/v2/models/m/generate_stream", "triton", "generate_stream", "none", False),
    ("GET", "/v2/models/m/ready", "triton", "other", "none", True),
    ("GET", "/v2", "triton", "other", "none", True),
    ("POST", "/v2/repository/models/m/load", "triton", "other", "none", False),
    ("POST", "/anything", "generic", "other", "none", False),
    ("GET", "/", "generic", "other", "none", False),
    # Not quite:
    ("GET", "/v1/chat/completions", "openai", "other", "none", True),
    ("post", "/v1/chat/completions", "openai", "other", "none", False),
    ("POST", "/v1/Chat/Completions", "openai", "other", "none", False),
    ("POST", "/v1beta/models", "generic", "other", "none", False),
    ("POST", "/openai/v1/chat/completions", "generic", "other", "none", False),
    ("POST", "/v1/chat%2Fcompletions", "openai", "other", "none", False),
    ("POST", "/v2/models/m/infer/more", "triton", "other", "none", False),
    ("OPTIONS", "*", "generic", "other", "none", False),
    ("POST", "", "generic", "other", "none", False),
    # Slashes that say nothing:
    ("POST", "/v1/chat/completions/", "openai", "chat", "json", True),
    ("POST", "//v1//chat/completions", "openai", "chat", "json", True),
    ("POST", "/v2/models/m/infer/", "triton", "infer", "none", False),
    ("GET", "//", "generic", "other", "none", False),
]


@pytest.mark.parametrize(("method", "path", "dialect", "name", "body", "repeatable"), KNOWN)
def test_table(method: str, path: str, dialect: str, name: str, body: str, repeatable: bool) -> None:
    operation = recognise(method, path)
    assert (operation.dialect, operation.name, operation.body, operation.repeatable) == (
        dialect,
        name,
        body,
        repeatable,
    )
    assert (operation.scanner(b'multipart/form-data; boundary="b"') is None) == (body == "none")


def test_operations_are_shared() -> None:
    assert recognise("POST", "/v1/chat/completions") is recognise("POST", "/v1/chat/completions")


@pytest.mark.parametrize("path", ["/anything", "/v1/files", "/sdapi/v1/options", "/v1/messages/batches"])
def test_where_nothing_of_the_body_is_needed_only_its_length_is_read(path: str) -> None:
    work = recognise("POST", path).read(b"\xff not json", b"", path.encode())
    assert (work.model, work.body_bytes, work.stream, dict(work.session_fields)) == (None, 10, False, {})
