"""Deterministic tokens: how many a text has, and what an emulated model says. Pure."""

from __future__ import annotations

import random
import zlib

# One token is about four bytes of English (OpenAI's rule of thumb); chat templates add a few per message.
BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4

# Plain ASCII without quotes or backslashes, so that no escaping is needed when a token goes into JSON.
_SENTENCE = (
    "the weight of a request is what it holds and how long it holds it so a balance that counts heads alone "
    "will tip while half of its pans are empty measure first then place and move nothing that need not move "
    "each node keeps its own pace memory is bytes time is seconds queues grow where both are guessed wrong"
)
WORDS = tuple(f"{word} " for word in _SENTENCE.split())


def count_tokens(text: str) -> int:
    """Tokens of a text: its UTF-8 bytes over four, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def fingerprint(seed: int, text: bytes) -> int:
    """32 bits that stand for a prompt under a seed."""
    return zlib.crc32(text, seed & 0xFFFFFFFF)


def token(print32: int, index: int) -> str:
    """Token ``index`` of the answer to the prompt with this fingerprint: the same on every node of the same seed,
    so that an answer cut on one node can be continued on another."""
    mixed = (print32 + index * 0x9E3779B1) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    mixed = (mixed * 0x85EBCA6B) & 0xFFFFFFFF
    mixed ^= mixed >> 13
    return WORDS[mixed % len(WORDS)]


def natural_length(print32: int, median: int) -> int:
    """Tokens the model would say without a limit: log-normal around ``median``.

    Sigma 0.7 gives the long right tail that chat traces show (p95 about three times the median).
    """
    return max(1, round(median * random.Random(print32).lognormvariate(0.0, 0.7)))


def words_in(text: str) -> int:
    """How many tokens of ours a text holds: the inverse of joining ``token`` results."""
    return len(text.split())
