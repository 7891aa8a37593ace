"""The bytes that go over the wire: the chat request, the chat answer, and the events of a stream."""

from __future__ import annotations

import json

MODEL = "bench"
CHAT_PATH = "/v1/chat/completions"
PLAIN_BYTES = 1024
BIG_BODY_BYTES = 16 * 1024 * 1024
_WORDS = "the balance weighs a heavy load with a small and well placed counterweight "


def _padded(document: dict[str, object], holder: dict[str, object], size: int) -> bytes:
    """`document` as JSON of exactly `size` bytes; the text grows in ``holder["content"]``, a part of it."""
    holder["content"] = ""
    room = size - len(json.dumps(document))
    if room < 0:
        raise ValueError(f"{size} bytes are too few for this message; the least is {size - room}")
    holder["content"] = (_WORDS * (room // len(_WORDS) + 1))[:room]
    return json.dumps(document).encode()


def chat_body(size: int = PLAIN_BYTES, *, stream: bool = False) -> bytes:
    """An OpenAI chat request of exactly `size` bytes."""
    message: dict[str, object] = {"role": "user"}
    document: dict[str, object] = {"model": MODEL, "stream": stream, "max_tokens": 100, "messages": [message]}
    return _padded(document, message, size)


def chat_answer(size: int = PLAIN_BYTES) -> bytes:
    """An OpenAI chat answer of exactly `size` bytes."""
    message: dict[str, object] = {"role": "assistant"}
    return _padded(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 180, "completion_tokens": 120, "total_tokens": 300},
        },
        message,
        size,
    )


def models_answer() -> bytes:
    """The answer of ``/v1/models``: one model."""
    model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}
    return json.dumps({"object": "list", "data": [model]}).encode()


def http_request(port: int, body: bytes, path: str = CHAT_PATH) -> bytes:
    """A POST of `body` to the loopback address, ready to be written, with the headers of an SDK."""
    return request_head(port, len(body), path) + body


def get_request(port: int, path: str) -> bytes:
    """A GET of `path` after which the connection is to be closed."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()


def request_head(port: int, body_bytes: int, path: str = CHAT_PATH) -> bytes:
    """The head of that POST; the body may follow in pieces."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Accept: */*\r\nUser-Agent: steelyard-bench\r\nAuthorization: Bearer sk-bench\r\n"
        f"Content-Length: {body_bytes}\r\n\r\n"
    ).encode()


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(delta: dict[str, str], finish_reason: str | None) -> bytes:
    document = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# The end mark `data: [DONE]` travels with the last event and is not counted as one.
EVENT_MARK = b"data: {"
STREAM_EVENT = _chunk(_event({"content": " token"}, None))
# The last event, the end mark of the OpenAI dialect and the end of the chunked body go out in one write.
STREAM_END = _chunk(_event({}, "stop")) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
CHUNKED_END = b"0\r\n\r\n"
