"""What a request asks for (Work) and what it will occupy (Footprint)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NO_FIELDS: Final[Mapping[str, str]] = {}


class Footprint:
    """What a Work is predicted to occupy on a node."""

    __slots__ = ("memory", "seconds", "source", "tokens")

    def __init__(self, memory: int = 0, seconds: float = 1.0, tokens: int = 0, source: str = "default") -> None:
        self.memory = memory
        """Device memory in bytes, an upper quantile. 0 where device memory does not decide (pre-allocating engines)."""
        self.seconds = seconds
        """Time on an otherwise idle node of speed 1, median, in seconds."""
        self.tokens = tokens
        """KV tokens held until the end (prompt and output)."""
        self.source = source
        """Where the numbers come from: default, table, analytic, hint, learned."""

    @property
    def seconds_limit(self) -> float:
        """A time in seconds that nearly every such request stays under (used where the end cannot be seen).

        Three times the median: the 0.99 quantile of the measured Stable Diffusion service times lies at 2.1 times
        theirs, and a node that is shared by two jobs needs up to twice as long.
        """
        return 3.0 * self.seconds


class Work:
    """What one request asks for, as its dialect read it.

    Sizes that a dialect does not know stay 0. `model` is the name the client wrote until the balancer resolved
    an alias; `asked_model` keeps what was written.
    """

    __slots__ = (
        "asked_model",
        "audio_seconds",
        "body_bytes",
        "deadline",
        "dialect",
        "fallback",
        "footprint",
        "height",
        "images",
        "max_tokens",
        "model",
        "operation",
        "priority",
        "prompt_tokens",
        "repeatable",
        "samples",
        "session",
        "session_fields",
        "steps",
        "stream",
        "tenant",
        "version",
        "width",
    )

    def __init__(
        self,
        dialect: str = "generic",
        operation: str = "other",
        model: str | None = None,
        *,
        version: str | None = None,
        stream: bool = False,
        repeatable: bool = False,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        samples: int = 1,
        width: int = 0,
        height: int = 0,
        steps: int = 0,
        images: int = 1,
        audio_seconds: float = 0.0,
        body_bytes: int = 0,
        session: str | None = None,
        tenant: str = "",
    ) -> None:
        self.dialect = dialect
        """openai, anthropic, sdwebui, triton, ... or generic."""
        self.operation = operation
        """What is wanted inside the dialect: chat, completions, embeddings, images, transcription, ... or other."""
        self.model = model
        self.asked_model = model
        self.version = version
        self.stream = stream
        self.repeatable = repeatable
        """True when executing it a second time does no harm (design section 8)."""
        self.prompt_tokens = prompt_tokens
        """An estimate in tokens."""
        self.max_tokens = max_tokens
        """The client's limit on output tokens; 0 = none given."""
        self.samples = samples
        """Answers asked for at once (`n`, `best_of`)."""
        self.width = width
        self.height = height
        """Pixels."""
        self.steps = steps
        """Diffusion steps, all passes together."""
        self.images = images
        """Images in parallel and in sequence, together."""
        self.audio_seconds = audio_seconds
        self.body_bytes = body_bytes
        self.session = session
        """The affinity key, already namespaced by tenant; None when the request names none."""
        self.session_fields = NO_FIELDS
        """The session keys that the body names, by field (`prompt_cache_key`, `user`); not empty strings."""
        self.tenant = tenant
        self.priority = 0
        self.deadline: float | None = None
        """On the clock of `now`, in seconds; None = no deadline of its own."""
        self.fallback = False
        """`model` is the route's fallback, and not what was asked for."""
        self.footprint: Footprint | None = None
