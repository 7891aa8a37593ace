"""Seconds: how long a Work is expected to occupy a node, from its sizes alone.

The coefficients describe the reference node, speed 1: an RTX 4090 class card with an 8B language model, a 24 GB
card of the A10G / RTX 3090 class for images, and Whisper large. They need not be right for a user's fleet: every
node of a pool is judged by the same table, and what decides is the ratio between requests. `Node.speed` scales them.
"""

from __future__ import annotations

from typing import Final

from steelyard.core.work import Footprint, Work

PREFILL_SECONDS_PER_TOKEN: Final = 0.0782e-3
"""Fitted to kernel profiles of vLLM 0.19, Llama-3.1-8B on an RTX 4090."""
DECODE_SECONDS_PER_TOKEN: Final = 17e-3
"""One decode iteration of the same at a small batch: 16.96 ms + 0.05 ms a running sequence."""
EXPECTED_OUTPUT_TOKENS: Final = 256
"""Median answers of public chat traces are 130 to 350 tokens; a client's limit is rarely reached."""
IMAGE_SECONDS_PER_STEP: Final = 0.04
"""512 x 512 pixels, one image: 50 steps in 2 s."""
IMAGE_OVERHEAD_SECONDS: Final = 0.15
IMAGE_STEPS: Final = 50
PIXELS: Final = 512 * 512
IMAGE_EXPONENT: Final = 0.91
"""Batching gains a little: published batch 4 and 16 rows give 0.84 to 0.93."""
PIXEL_EXPONENT: Final = 1.03
AUDIO_SECONDS_PER_SECOND: Final = 1 / 12.4
"""Real-time factor of faster-whisper large-v2, fp16, beam 5."""
AUDIO_OVERHEAD_SECONDS: Final = 0.3
DEFAULT_SECONDS: Final = 1.0
"""For a request of which nothing is known: all of them alike, so that least-work becomes least-request."""


def estimate(work: Work) -> Footprint:
    """The analytic Footprint of `work`: seconds and KV tokens; memory stays 0 (a route's table knows it)."""
    if work.audio_seconds:
        return Footprint(
            seconds=AUDIO_OVERHEAD_SECONDS + work.audio_seconds * AUDIO_SECONDS_PER_SECOND, source="analytic"
        )
    if work.width and work.height:
        pixels = work.width * work.height / PIXELS
        steps = work.steps or IMAGE_STEPS
        seconds = IMAGE_OVERHEAD_SECONDS + IMAGE_SECONDS_PER_STEP * steps * (
            work.images**IMAGE_EXPONENT * pixels**PIXEL_EXPONENT
        )
        return Footprint(seconds=seconds, source="analytic")
    if work.prompt_tokens:
        prompt = work.prompt_tokens
        if work.operation in GENERATING:
            output = EXPECTED_OUTPUT_TOKENS
            if 0 < work.max_tokens < output:
                output = work.max_tokens
            # The samples of one request decode side by side: they cost tokens, hardly any time.
            return Footprint(
                seconds=prompt * PREFILL_SECONDS_PER_TOKEN + output * DECODE_SECONDS_PER_TOKEN,
                tokens=prompt + output * work.samples,
                source="analytic",
            )
        return Footprint(seconds=prompt * PREFILL_SECONDS_PER_TOKEN, tokens=prompt, source="analytic")
    return Footprint(seconds=DEFAULT_SECONDS)


GENERATING: Final = frozenset({"chat", "completions", "messages", "responses", "generate"})
"""Operations whose time is made of output tokens."""
