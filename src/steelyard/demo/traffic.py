"""The load of the demo: independent users of five kinds, for as long as it is wanted."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from steelyard.sim.http_client import Request
from steelyard.sim.traces import Arrival, poisson

LANGUAGE_MODEL = "llama-3.1-8b"
IMAGE_MODEL = "sd-1.5"
SPEECH_MODEL = "whisper-large-v3"
JSON = (("content-type", "application/json"),)
BOUNDARY = "steelyard-demo"
SAMPLE_RATE = 8000  # one byte a sample: telephone quality, so that bodies are small
QUESTIONS = (
    "How does a steelyard weigh a heavy load with a small counterweight?",
    "Write a haiku about a queue in front of a graphics card.",
    "Which request should go first, and why?",
    "Explain to a child what a load balancer does.",
)
WORDS = (
    "a",
    "balance",
    "beam",
    "counterweight",
    "fulcrum",
    "heavy",
    "hook",
    "load",
    "mark",
    "of",
    "pan",
    "the",
    "to",
    "weighs",
)


def chat(rng: Random) -> Request:
    """A streamed answer of 30 to 300 tokens on a text of 100 to 3,000 words, as when documents are asked about."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(100, 3000)))
    return post(
        "/v1/chat/completions",
        {
            "model": LANGUAGE_MODEL,
            "messages": [{"role": "user", "content": f"{rng.choice(QUESTIONS)} Text: {text}"}],
            "max_tokens": rng.randint(30, 300),
            "stream": True,
        },
    )


def image_512(rng: Random) -> Request:
    """A small picture, asked for as the web UI does."""
    return post("/sdapi/v1/txt2img", {"prompt": _picture(rng), "width": 512, "height": 512, "steps": 50})


def image_1024(rng: Random) -> Request:
    """A large picture, asked for in the way of OpenAI."""
    return post("/v1/images/generations", {"model": IMAGE_MODEL, "prompt": _picture(rng), "size": "1024x1024"})


def embedding(rng: Random) -> Request:
    """An embedding of a short text."""
    return post("/v1/embeddings", {"model": LANGUAGE_MODEL, "input": rng.choice(QUESTIONS)})


def transcription(rng: Random) -> Request:
    """A recording of 3 to 20 seconds."""
    recording = silence(rng.uniform(3.0, 20.0))
    body = (
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="model"\r\n\r\n{SPEECH_MODEL}\r\n'
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="talk.wav"\r\n'
        "content-type: audio/wav\r\n\r\n"
    ).encode() + recording
    body += f"\r\n--{BOUNDARY}--\r\n".encode()
    return Request(
        "POST", "/v1/audio/transcriptions", (("content-type", f"multipart/form-data; boundary={BOUNDARY}"),), body
    )


KINDS: dict[str, tuple[float, Callable[[Random], Request]]] = {
    "chat (stream)": (6.0, chat),
    "image 512x512": (2.0, image_512),
    "image 1024x1024": (0.5, image_1024),
    "transcription": (1.0, transcription),
    "embeddings": (4.0, embedding),
}
"""Kind -> requests a second and how one is made. At four times real speed the image nodes are busy for half of the
time, the speech node for a third, and two or three chats run on each language node."""


def mixed_traffic(rng: Random) -> Iterator[Arrival]:
    """Poisson arrivals of all kinds together, for ever."""
    kinds = list(KINDS)
    rates = [rate for rate, _ in KINDS.values()]
    for at in poisson(rng, sum(rates)):
        (kind,) = rng.choices(kinds, rates)
        yield Arrival(at, kind, KINDS[kind][1](rng))


def post(path: str, body: dict[str, Any]) -> Request:
    """A JSON request."""
    return Request("POST", path, JSON, json.dumps(body).encode(), stream=bool(body.get("stream")))


def silence(seconds: float) -> bytes:
    """A WAV file of that length, 8 bits mono."""
    samples = int(seconds * SAMPLE_RATE)
    shape = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE, 1, 8)
    data = struct.pack("<4sI", b"data", samples) + b"\x80" * samples
    return struct.pack("<4sI4s", b"RIFF", 4 + len(shape) + len(data), b"WAVE") + shape + data


def _picture(rng: Random) -> str:
    return f"a {rng.choice(('brass', 'wooden', 'golden'))} steelyard, {rng.choice(('oil', 'ink', 'photo'))}"
