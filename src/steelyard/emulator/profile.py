"""What an emulated node is: its kind, its card and its tables of bytes and seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sd", "llm", "whisper", "classify"]
KINDS: tuple[Kind, ...] = ("sd", "llm", "whisper", "classify")
ENGINES: dict[Kind, str] = {"sd": "sdwebui", "llm": "vllm", "whisper": "openai", "classify": "triton"}
MODELS: dict[Kind, str] = {
    "sd": "sd-1.5",
    "llm": "llama-3.1-8b",
    "whisper": "whisper-large-v3",
    "classify": "sentiment",
}

PIXELS_512 = 512 * 512
PIXELS_1024 = 1024 * 1024


class EmulatorError(Exception):
    """The fleet cannot be made as asked; the text is one clear line."""


@dataclass(frozen=True)
class ImageTables:
    """Bytes and seconds of Stable Diffusion jobs.

    The anchors are those of the article of the five traps (a 512x512 image takes 8 GB and 2 s, a 1024x1024 one 18 GB
    and 8 s, at 50 steps). Memory is linear in pixels x batch. Time has the form of policy-science 3.3,
    ``overhead + steps * images^0.91 * (pixels / 512^2)^p / rate``, with rate and p solved from the two anchors
    (27 steps/s, an RTX 3090 or A10G; p = 1.04).
    """

    memory: tuple[tuple[int, int], ...] = ((PIXELS_512, 8_000_000_000), (PIXELS_1024, 18_000_000_000))
    seconds_512: float = 2.0
    seconds_1024: float = 8.0
    overhead: float = 0.15
    steps: int = 50
    batch_exponent: float = 0.91

    def job_memory(self, pixels: int) -> int:
        """Bytes for ``pixels`` (width x height x batch): linear between and outside the table's points."""
        points = sorted(self.memory)
        if len(points) == 1:
            return points[0][1] * pixels // points[0][0]
        below = points[0]
        above = points[1]
        for index in range(1, len(points) - 1):
            if pixels > points[index][0]:
                below, above = points[index], points[index + 1]
        slope = (above[1] - below[1]) / (above[0] - below[0])
        return max(0, round(below[1] + slope * (pixels - below[0])))

    def job_seconds(self, pixels: int, steps: float, images: int = 1) -> float:
        """Seconds on the idle card for ``images`` of ``pixels`` each, in one batch."""
        base = self.seconds_512 - self.overhead
        exponent = math.log((self.seconds_1024 - self.overhead) / base) / math.log(PIXELS_1024 / PIXELS_512)
        size = (pixels / PIXELS_512) ** exponent
        return self.overhead + base * steps / self.steps * images**self.batch_exponent * size


@dataclass(frozen=True)
class NodeProfile:
    """One node. What is None takes the default of its kind."""

    kind: Kind = "sd"
    name: str = ""  # "" becomes gpu-1, gpu-2, ... in a fleet
    gpu_memory: int = 24_000_000_000  # usable bytes
    models: tuple[str, ...] = ()
    version: str = "v1"
    speed: float = 1.0  # 2.0 computes twice as fast
    port: int = 0  # 0: a free one
    resident: int | None = None  # bytes that weights and context hold
    concurrency: int | None = None  # jobs on the card at once; None: sd and whisper unlimited, classify 1
    queue_limit: int | None = None  # requests that may wait (vllm: run or wait) before 503; None: no limit
    cancels_on_disconnect: bool | None = None
    images: ImageTables = ImageTables()
    # After an out-of-memory error a job has cost this long and has left nothing behind.
    oom_seconds: float = 0.3
    kv_tokens: int | None = None
    max_context: int = 32_768
    max_sequences: int = 256
    output_tokens: int = 200  # median length of an answer without a limit
    audio_speed: float = 12.4  # audio seconds per second: faster-whisper large-v2, fp16, RTX 3070 Ti (3.4)
    window_memory: int = 220_000_000  # bytes a concurrent 30 s window (3.4)
    classify_seconds: float = 0.008
    classify_item_seconds: float = 0.002

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise EmulatorError(f"unknown kind {self.kind!r}; known: {', '.join(KINDS)}")
        if self.gpu_memory <= 0:
            raise EmulatorError(f"gpu memory must be above 0 bytes, not {self.gpu_memory}")
        if not self.speed > 0:
            raise EmulatorError(f"speed must be above 0, not {self.speed}")
        for name in ("concurrency", "queue_limit"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "concurrency" else 0):
                raise EmulatorError(f"{name} of a node is too small: {value}")

    @property
    def engine(self) -> str:
        """The engine's name in a gateway's configuration."""
        return ENGINES[self.kind]

    @property
    def served_models(self) -> tuple[str, ...]:
        return self.models or (MODELS[self.kind],)
