"""What is read of requests and answers of the Anthropic Messages API; the rest of them goes by unread.

Apart from `anthropic.py`, since the compiler of the data path does not know msgspec's Structs.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from steelyard.dialects.body import Name

NOTHING = Raw(b"")


class UsageFields(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class Answer(Struct, gc=False):
    usage: UsageFields | None = None


class Metadata(Struct, gc=False):
    user_id: Name | None = None


class MessageFields(Struct, gc=False):
    model: Name | None = None
    messages: Raw = NOTHING
    system: Raw = NOTHING
    tools: Raw = NOTHING
    stream: bool | None = None
    max_tokens: int | None = None
    metadata: Metadata | None = None
