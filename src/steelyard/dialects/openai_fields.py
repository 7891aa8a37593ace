"""What is read of requests and answers of OpenAI's API; the rest of them goes by unread.

Apart from `openai.py`, since the compiler of the data path does not know msgspec's Structs.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from steelyard.dialects.body import Name

NOTHING = Raw(b"")


class TokenDetails(Struct, gc=False):
    cached_tokens: int | None = None


class UsageFields(Struct, gc=False):
    """Usage in the words of chat and completions, and of responses, images and audio."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    input_tokens_details: TokenDetails | None = None


class Answer(Struct, gc=False):
    usage: UsageFields | None = None


class ChatFields(Struct, gc=False):
    model: Name | None = None
    messages: Raw = NOTHING
    tools: Raw = NOTHING
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    store: bool | None = None
    background: bool | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None


class CompletionFields(Struct, gc=False):
    model: Name | None = None
    prompt: Raw = NOTHING
    stream: bool | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    store: bool | None = None
    background: bool | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None


class ResponseFields(Struct, gc=False):
    model: Name | None = None
    input: Raw = NOTHING
    instructions: Raw = NOTHING
    tools: Raw = NOTHING
    stream: bool | None = None
    max_output_tokens: int | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None


class InputFields(Struct, gc=False):
    model: Name | None = None
    input: Raw = NOTHING
    prompt: Raw = NOTHING
    messages: Raw = NOTHING
    query: Raw = NOTHING
    documents: Raw = NOTHING
    texts: Raw = NOTHING
    text_1: Raw = NOTHING
    text_2: Raw = NOTHING
    user: Name | None = None


class ImageFields(Struct, gc=False):
    model: Name | None = None
    n: int | None = None
    size: Name | None = None
    num_inference_steps: int | None = None
    stream: bool | None = None
    user: Name | None = None


class SpeechFields(Struct, gc=False):
    model: Name | None = None
    input: Raw = NOTHING
