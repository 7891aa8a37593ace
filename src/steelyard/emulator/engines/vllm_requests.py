"""What a request asks of vLLM: sequences, tokens and text, read from the bodies of its API. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from steelyard.emulator.engines.base import Refusal
from steelyard.emulator.text import TOKENS_PER_MESSAGE, count_tokens, fingerprint, natural_length, words_in

IMAGE_TOKENS = 576  # of one image part: 24 x 24 patches, as LLaVA-1.5 makes
COMPLETION_DEFAULT = 16  # tokens of /v1/completions without max_tokens (model-servers 3.2)
MAX_CHOICES = 128  # OpenAI's limit for n


@dataclass
class Generation:
    """One sequence to generate: ``print32`` stands for the prompt, ``offset`` for what of the answer exists."""

    prompt_tokens: int
    output_tokens: int
    reason: str
    print32: int
    offset: int = 0


@dataclass
class Ask:
    """A request, read."""

    model: str
    stream: bool
    include_usage: bool
    messages: int = 0
    prompt_tokens: int = 0  # each prompt once, however many choices it has
    generations: list[Generation] = field(default_factory=list)


@dataclass(frozen=True)
class Limits:
    """What the engine allows and how long its answers are."""

    models: tuple[str, ...]
    max_context: int
    output_tokens: int
    seed: int


def read_chat(body: dict[str, Any], limits: Limits) -> Ask:
    """POST /v1/chat/completions."""
    ask = _common(body, limits)
    messages = _messages(body)
    offset = 0
    tokens = sum(_message_tokens(message) for message in messages) + _tool_tokens(body)
    asked = messages
    if body.get("continue_final_message") is True and messages[-1].get("role") == "assistant":
        offset = words_in(_content_text(messages[-1].get("content")))
        asked = messages[:-1]
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    print32 = fingerprint(limits.seed, msgspec.json.encode([_plain(message) for message in asked]))
    ask.messages, ask.prompt_tokens = len(messages), tokens
    ask.generations = _generations(body, limits, tokens, limit, print32, offset)
    return ask


def read_messages(body: dict[str, Any], limits: Limits) -> Ask:
    """POST /v1/messages; a last message of the assistant is continued, as the API says."""
    ask = _common(body, limits)
    messages = _messages(body)
    if body.get("max_tokens") is None:
        raise Refusal(400, "max_tokens: Field required", "max_tokens")
    tokens = message_tokens(body, messages)
    asked, offset = messages, 0
    if messages[-1].get("role") == "assistant":
        offset = words_in(_content_text(messages[-1].get("content")))
        asked = messages[:-1]
    print32 = fingerprint(limits.seed, msgspec.json.encode([_plain(message) for message in asked]))
    ask.messages, ask.prompt_tokens = len(messages), tokens
    ask.generations = _generations({**body, "n": 1}, limits, tokens, body["max_tokens"], print32, offset)
    return ask


def message_tokens(body: dict[str, Any], messages: list[dict[str, Any]] | None = None) -> int:
    """Input tokens of an Anthropic request."""
    system = body.get("system")
    total = count_tokens(_content_text(system)) if system else 0
    return total + sum(_message_tokens(message) for message in messages or _messages(body)) + _tool_tokens(body)


def read_completion(body: dict[str, Any], limits: Limits) -> Ask:
    """POST /v1/completions; a list of prompts makes as many sequences."""
    ask = _common(body, limits)
    limit = body.get("max_tokens")
    limit = COMPLETION_DEFAULT if limit is None else limit
    for prompt in _inputs(body.get("prompt"), "prompt"):
        data = prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt)
        tokens = count_tokens(prompt) if isinstance(prompt, str) else len(prompt)
        ask.prompt_tokens += max(1, tokens)
        ask.generations += _generations(body, limits, tokens, limit, fingerprint(limits.seed, data), 0)
    return ask


def read_embeddings(body: dict[str, Any], limits: Limits) -> Ask:
    """POST /v1/embeddings: prefill only."""
    ask = _common(body, limits)
    ask.stream = False
    for text in _inputs(body.get("input"), "input"):
        data = text.encode() if isinstance(text, str) else msgspec.json.encode(text)
        tokens = max(1, count_tokens(text) if isinstance(text, str) else len(text))
        if tokens > limits.max_context:
            raise _too_long(limits, tokens, 0)
        ask.prompt_tokens += tokens
        ask.generations.append(Generation(tokens, 0, "stop", fingerprint(limits.seed, data)))
    return ask


def _common(body: dict[str, Any], limits: Limits) -> Ask:
    model = body.get("model")
    if model is None:
        model = limits.models[0]  # vLLM fills in the model it serves
    if model not in limits.models:
        raise Refusal(404, f"The model `{model}` does not exist.", "model")
    options = body.get("stream_options")
    include_usage = isinstance(options, dict) and options.get("include_usage") is True
    return Ask(str(model), body.get("stream") is True, include_usage)


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Refusal(400, "messages: must be a list of at least one message", "messages")
    return messages


def _plain(message: dict[str, Any]) -> tuple[str, str]:
    return str(message.get("role")), _content_text(message.get("content"))


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _message_tokens(message: dict[str, Any]) -> int:
    content = message.get("content")
    tokens = count_tokens(_content_text(content)) + TOKENS_PER_MESSAGE
    if isinstance(content, list):
        images = sum(isinstance(part, dict) and part.get("type") in ("image_url", "image") for part in content)
        tokens += IMAGE_TOKENS * images
    return tokens


def _tool_tokens(body: dict[str, Any]) -> int:
    tools = body.get("tools")
    return count_tokens(msgspec.json.encode(tools).decode()) if tools else 0


def _inputs(value: Any, name: str) -> list[str | list[int]]:
    """A string, token ids, or a list of either, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, int) for each in value):
            return [value]
        if all(isinstance(each, (str, list)) for each in value):
            return value
    raise Refusal(400, f"{name}: must be a string, token ids, or a list of them", name)


def _generations(
    body: dict[str, Any], limits: Limits, tokens: int, limit: Any, print32: int, offset: int
) -> list[Generation]:
    tokens = max(1, tokens)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise Refusal(400, f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    if tokens + (limit or 1) > limits.max_context:
        raise _too_long(limits, tokens, limit or 1)
    room = limits.max_context - tokens if limit is None else limit
    choices = body.get("n")
    choices = 1 if choices is None else choices
    if isinstance(choices, bool) or not isinstance(choices, int) or not 1 <= choices <= MAX_CHOICES:
        raise Refusal(400, f"n must be from 1 to {MAX_CHOICES}, got {choices}.", "n")
    generations = []
    for index in range(choices):
        own = (print32 + index * 7919) & 0xFFFFFFFF  # any odd step: each choice says something else
        natural = max(1, natural_length(own, limits.output_tokens) - offset)
        least = body.get("min_tokens")
        if isinstance(least, int):
            natural = max(natural, least)
        if body.get("ignore_eos") is True:
            natural = room
        reason = "length" if natural > room or body.get("ignore_eos") is True else "stop"
        generations.append(Generation(tokens, min(natural, room), reason, own, offset))
    return generations


def _too_long(limits: Limits, prompt: int, output: int) -> Refusal:
    return Refusal(
        400,
        f"This model's maximum context length is {limits.max_context} tokens. However, you requested "
        f"{prompt + output} tokens ({prompt} in the input, {output} in the output). "
        "Please reduce the length of the input or the output.",
        "max_tokens" if output > 1 else "messages",
    )
