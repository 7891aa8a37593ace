"""What one event of a streamed answer says: output, usage, an error, the end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from steelyard.dialects import anthropic, anthropic_fields, openai, openai_fields
from steelyard.dialects.operation import Usage

NOTHING = Raw(b"")
EMPTY_VALUES = frozenset({b"", b"null", b'""', b"[]", b"{}", b"false"})
"""JSON values that clients take for nothing."""


class Event(Struct, gc=False):
    """What was read from an event."""

    token: bool = False
    """It carries output: text, reasoning, a tool call, a piece of a picture."""
    usage: Usage | None = None
    error: bool = False
    done: bool = False
    typed: bool = False
    """It names its `type`, and so will all events of the stream."""


SOMETHING = Event(token=True)


class OpenAIDelta(Struct, gc=False):
    content: Raw = NOTHING
    reasoning_content: Raw = NOTHING
    reasoning: Raw = NOTHING
    tool_calls: Raw = NOTHING
    function_call: Raw = NOTHING
    refusal: Raw = NOTHING
    audio: Raw = NOTHING


class OpenAIChoice(Struct, gc=False):
    delta: OpenAIDelta | None = None
    text: Raw = NOTHING


class OpenAIResponse(Struct, gc=False):
    usage: openai_fields.UsageFields | None = None


class OpenAIEvent(Struct, gc=False):
    choices: list[OpenAIChoice] | None = None
    usage: openai_fields.UsageFields | None = None
    error: Raw = NOTHING
    object: str | None = None
    type: str | None = None
    delta: Raw = NOTHING
    response: OpenAIResponse | None = None


TERMINAL_TYPES = frozenset(
    {
        "response.completed",
        "response.failed",
        "response.incomplete",
        "transcript.text.done",
        "speech.audio.done",
        "image_generation.completed",
        "image_edit.completed",
    }
)

_decode_openai = msgspec.json.Decoder(OpenAIEvent).decode


def openai_event(data: bytes) -> Event:
    """An event of chat, completions, responses, transcription, speech or images.

    What is not such JSON counts as output: something did arrive.
    """
    try:
        fields = _decode_openai(data)
    except (msgspec.MsgspecError, RecursionError):
        return SOMETHING
    event = Event()
    usage = fields.usage
    kind = fields.type
    if kind is not None:
        event.typed = True
        event.token = kind.endswith((".delta", ".partial_image")) and bytes(fields.delta) != b'""'
        event.done = kind in TERMINAL_TYPES
        event.error = kind in ("error", "response.failed")
        if usage is None and fields.response is not None:
            usage = fields.response.usage
    elif fields.choices:
        event.token = any(map(has_output, fields.choices))
    if usage is not None:
        event.usage = openai.usage_of(usage)
    if not event.error:
        event.error = bytes(fields.error) not in EMPTY_VALUES or fields.object == "error"
    return event


def has_output(choice: OpenAIChoice) -> bool:
    """Whether a choice carries more than a role or the reason why it ended."""
    if bytes(choice.text) not in EMPTY_VALUES:
        return True
    delta = choice.delta
    return delta is not None and not EMPTY_VALUES.issuperset(
        map(
            bytes,
            (
                delta.content,
                delta.reasoning_content,
                delta.reasoning,
                delta.tool_calls,
                delta.function_call,
                delta.refusal,
                delta.audio,
            ),
        )
    )


def generic_event(data: bytes) -> Event:
    """As OpenAI's; an event of another shape counts as output (TGI, llama.cpp and others have their own)."""
    event = openai_event(data)
    if not (event.token or event.error or event.typed or event.usage) and b'"choices"' not in data:
        event.token = True
    return event


class AnthropicMessage(Struct, gc=False):
    usage: anthropic_fields.UsageFields | None = None


class AnthropicEvent(Struct, gc=False):
    type: str | None = None
    message: AnthropicMessage | None = None
    usage: anthropic_fields.UsageFields | None = None
    error: Raw = NOTHING


_decode_anthropic = msgspec.json.Decoder(AnthropicEvent).decode


def anthropic_event(data: bytes) -> Event:
    """An event of the Messages API. Its counts are cumulative."""
    try:
        fields = _decode_anthropic(data)
    except (msgspec.MsgspecError, RecursionError):
        return SOMETHING
    event = Event()
    kind = fields.type
    event.token = kind == "content_block_delta"
    event.done = kind == "message_stop"
    event.error = kind == "error" or bytes(fields.error) not in EMPTY_VALUES
    usage = fields.usage
    if usage is None and fields.message is not None:
        usage = fields.message.usage
    if usage is not None:
        event.usage = anthropic.usage_of(usage)
    return event


class TritonEvent(Struct, gc=False):
    error: Raw = NOTHING


_decode_triton = msgspec.json.Decoder(TritonEvent).decode


def triton_event(data: bytes) -> Event:
    """An event of `generate_stream`: every one is output, or an error. Nothing marks the end."""
    try:
        failed = bytes(_decode_triton(data).error) not in EMPTY_VALUES
    except (msgspec.MsgspecError, RecursionError):
        failed = False
    return Event(token=not failed, error=failed)


EVENT_READERS: dict[str, Callable[[bytes], Event]] = {
    "openai": openai_event,
    "anthropic": anthropic_event,
    "triton": triton_event,
}


def event_reader(dialect: str) -> Callable[[bytes], Event]:
    """Reads the data of an event in a dialect."""
    return EVENT_READERS.get(dialect, generic_event)
