"""How vLLM writes its answers: OpenAI chat and completions, Anthropic messages, whole or as server-sent events. Pure.

A reply is told about tokens as they come; it gives back the events to send, or at the end the whole body.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}  # OpenAI's finish_reason -> Anthropic's stop_reason


class Reply:
    """One answer with ``choices`` sequences. ``prompt_tokens`` is the sum over the prompts."""

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, choices: int, include_usage: bool
    ) -> None:
        self.id = id
        self.model = model
        self.created = created
        self.prompt_tokens = prompt_tokens
        self.choices = choices
        self.include_usage = include_usage
        self.texts: list[list[str]] = [[] for _ in range(choices)]
        self.reasons: list[str] = [""] * choices

    @property
    def completion_tokens(self) -> int:
        return sum(len(text) for text in self.texts)

    def usage(self) -> dict[str, int]:
        made = self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
        }

    def tokens(self, choice: int, words: list[str]) -> list[bytes]:
        """Events for new tokens of one choice."""
        raise NotImplementedError

    def finish(self, choice: int, reason: str) -> list[bytes]:
        """Events for the end (``stop`` or ``length``) of one choice."""
        raise NotImplementedError

    def end(self) -> list[bytes]:
        """Events for the end of the stream."""
        raise NotImplementedError

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        raise NotImplementedError


class OpenAiReply(Reply):
    """What chat and completions have in common: chunks that differ in one field, a usage chunk, [DONE]."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]
    opening: ClassVar[bytes]  # of a choice's text in a chunk, after its index
    closing: ClassVar[bytes]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        head = b"data: " + encode(self._envelope(self.chunk_object))[:-1] + b',"choices":[{"index":%d,'
        usage = b',"usage":null' if self.include_usage else b""
        self._heads = [head % index for index in range(self.choices)]
        self._tail = self.closing % b"null" + usage + b"}\n\n"

    def tokens(self, choice: int, words: list[str]) -> list[bytes]:
        self.texts[choice] += words
        head, tail = self._heads[choice] + self.opening, self._tail
        return [head + word.encode() + tail for word in words]

    def finish(self, choice: int, reason: str) -> list[bytes]:
        self.reasons[choice] = reason
        tail = self._tail.replace(b'"finish_reason":null', b'"finish_reason":"%b"' % reason.encode(), 1)
        return [self._heads[choice] + self.opening + tail]

    def end(self) -> list[bytes]:
        if not self.include_usage:
            return [DONE]
        last = {**self._envelope(self.chunk_object), "choices": [], "usage": self.usage()}
        return [b"data: " + encode(last) + b"\n\n", DONE]

    def body(self) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                **self.text_field("".join(text)),
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
            }
            for index, (text, reason) in enumerate(zip(self.texts, self.reasons, strict=True))
        ]
        return {**self._envelope(self.object), "choices": choices, "usage": self.usage()}

    def text_field(self, text: str) -> dict[str, Any]:
        """Where a choice of the whole answer keeps its text."""
        raise NotImplementedError

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChatReply(OpenAiReply):
    """POST /v1/chat/completions."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    opening = b'"delta":{"content":"'
    closing = b'"},"logprobs":null,"finish_reason":%b}]'

    def tokens(self, choice: int, words: list[str]) -> list[bytes]:
        role = []
        if not self.texts[choice]:
            role.append(self._heads[choice] + b'"delta":{"role":"assistant","content":"' + self._tail)
        return role + super().tokens(choice, words)

    def text_field(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}}


class CompletionReply(OpenAiReply):
    """POST /v1/completions."""

    object = "text_completion"
    chunk_object = "text_completion"
    opening = b'"text":"'
    closing = b'","logprobs":null,"finish_reason":%b,"stop_reason":null}]'

    def text_field(self, text: str) -> dict[str, Any]:
        return {"text": text}


class MessagesReply(Reply):
    """POST /v1/messages, the Anthropic shape."""

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, output_tokens: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": self.prompt_tokens, "output_tokens": output_tokens},
        }

    def tokens(self, choice: int, words: list[str]) -> list[bytes]:
        events = []
        if not self.texts[choice]:
            events.append(_event("message_start", {"message": self._message([], None, 0)}))
            block = {"index": 0, "content_block": {"type": "text", "text": ""}}
            events.append(_event("content_block_start", block))
        self.texts[choice] += words
        for word in words:
            delta = {"index": 0, "delta": {"type": "text_delta", "text": word}}
            events.append(_event("content_block_delta", delta))
        return events

    def finish(self, choice: int, reason: str) -> list[bytes]:
        self.reasons[choice] = reason
        delta = {
            "delta": {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None},
            "usage": {"output_tokens": self.completion_tokens},
        }
        return [_event("content_block_stop", {"index": 0}), _event("message_delta", delta)]

    def end(self) -> list[bytes]:
        return [_event("message_stop", {})]

    def body(self) -> dict[str, Any]:
        content = [{"type": "text", "text": "".join(self.texts[0])}]
        return self._message(content, _STOP_REASONS[self.reasons[0]], self.completion_tokens)


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))
