"""Routes: which requests get which behaviour. The first that matches wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from steelyard.core.cost import estimate
from steelyard.core.policies.registry import Policy
from steelyard.core.work import Footprint, Work


@dataclass(frozen=True)
class Timeouts:
    """How long each phase may last, in seconds."""

    connect: float = 2.0
    """A node on the same network answers in milliseconds, or is gone."""
    first_byte: float = 60.0
    """Of a stream: waiting in the node's queue and reading a long prompt."""
    plain_first_byte: float = 600.0
    """Of a plain answer, which comes only when all of it is computed; raised to 3 x the predicted seconds."""
    idle: float = 120.0
    """Between two reads of an answer, or of a request's body."""
    total: float = 1800.0


@dataclass(frozen=True)
class RetryRule:
    retries: int = 1
    budget: float = 0.2
    """Share of the live requests that may be retries at the same time (at least 3, Envoy's minimum)."""


@dataclass(frozen=True)
class QueueRule:
    size: int = 1000
    """Requests that may wait."""
    wait: float = 30.0
    """Seconds a request may wait."""


@dataclass(frozen=True)
class FootprintRule:
    """One row of a route's table: when every named size is met, the Work occupies this."""

    when: Mapping[str, int | float | str]
    """Attribute of Work -> value; sizes (numbers) match when the Work's is not larger, names when equal.

    A size that is not known (0: the dialect does not tell it, or the client gave no limit) is not "up to" anything: it
    meets no size but 0.
    """
    memory: int = 0
    seconds: float | None = None

    def matches(self, work: Work) -> bool:
        for name, value in self.when.items():
            actual = getattr(work, name)
            if isinstance(value, str):
                if actual != value:
                    return False
            elif actual > value or (value and not actual):
                return False
        return True


@dataclass
class Match:
    """Conditions of a route, all of which must hold. Paths and models are shell patterns."""

    path: str | None = None
    models: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case name -> exact value."""

    @property
    def names_path(self) -> bool:
        """Whether the path is one certain path, and not a pattern that may take in what nobody thought of."""
        return self.path is not None and not any(sign in self.path for sign in "*?[")

    def accepts(self, path: str, model: str | None, headers: Mapping[str, str]) -> bool:
        """Whether a request with this path (without query), model and headers belongs to the route."""
        if self.path is not None and not fnmatchcase(path, self.path):
            return False
        if self.models and (model is None or not any(fnmatchcase(model, pattern) for pattern in self.models)):
            return False
        return all(headers.get(name) == value for name, value in self.headers.items())


@dataclass
class Route:
    """A name, what it matches, and the behaviour of what it matches."""

    name: str
    policy: Policy
    match: Match = field(default_factory=Match)
    enforce_memory: bool = True
    footprints: Sequence[FootprintRule] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryRule = field(default_factory=RetryRule)
    queue: QueueRule = field(default_factory=QueueRule)
    fallback: str | None = None
    """A model instead of one that no node can serve now."""
    session_sources: Sequence[tuple[str, str]] = (
        ("header", "x-user-id"),
        ("header", "x-session-id"),
        ("cookie", "USER_SESSION"),
        ("body", "prompt_cache_key"),
        ("body", "user"),
    )
    """Where the session key may stand: (header | cookie | body, name), the first that is not empty wins. Names of
    headers are in lower case."""

    def footprint(self, work: Work) -> Footprint:
        """The Footprint of a Work on this route: its table's first row that matches, else analytic."""
        analytic = estimate(work)
        for rule in self.footprints:
            if rule.matches(work):
                return Footprint(
                    memory=rule.memory,
                    seconds=analytic.seconds if rule.seconds is None else rule.seconds,
                    tokens=analytic.tokens,
                    source="table",
                )
        return analytic


def first_match(routes: Sequence[Route], path: str, model: str | None, headers: Mapping[str, str]) -> Route | None:
    """The route of a request; None when no route wants it."""
    for route in routes:
        if route.match.accepts(path, model, headers):
            return route
    return None
