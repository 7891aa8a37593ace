"""What a trap is: a fleet, a trace, one gateway before and one after, and what must come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from steelyard.emulator import NodeProfile
from steelyard.sim.traces import Arrival


@dataclass(frozen=True)
class Stage:
    """Where a leg is played: the nodes as they listen, and how quick time is."""

    nodes: Sequence[tuple[str, str, NodeProfile]]
    """Name, url and profile of each."""
    time_scale: float
    """Real seconds per emulated second. The gateway lives in real time: seconds for it go through `real`."""

    def real(self, seconds: float) -> str:
        """Emulated seconds as a duration for the configuration."""
        return f"{seconds * self.time_scale * 1000:.3f}ms"

    def node_list(self) -> list[dict[str, Any]]:
        """`nodes:` of a configuration, with what the nodes cannot tell."""
        return [
            {"name": name, "url": url, "engine": profile.engine, "gpu_memory": profile.gpu_memory}
            for name, url, profile in self.nodes
        ]


@dataclass(frozen=True)
class Leg:
    """One gateway in front of the same fleet and the same trace."""

    title: str
    config: Callable[[Stage], Mapping[str, Any]]
    """The configuration, shaped like the YAML file; `listen`, `admin` and `access_log` are set by the runner."""


@dataclass(frozen=True)
class Expectation:
    """A figure of one leg and where it must lie."""

    leg: str
    figure: str
    """Its name in `figures`."""
    at_least: float = -math.inf
    at_most: float = math.inf
    why: str = ""

    def holds(self, value: float) -> bool:
        """NaN, which is no measurement, holds never."""
        return self.at_least <= value <= self.at_most


@dataclass(frozen=True)
class Scenario:
    """One trap. Everything random comes from the generator that `trace` gets, so a seed fixes it."""

    name: str
    title: str
    story: str
    """What breaks and why, in a sentence or two."""
    fleet: tuple[NodeProfile, ...]
    trace: Callable[[Random, int], list[Arrival]]
    """(random numbers, how many requests) -> the trace."""
    before: Leg
    expectations: tuple[Expectation, ...]
    after: Leg | None = None
    requests: int = 3000
    requests_short: int = 400
    time_scale: float = 0.1
    """Of the full run, unless told otherwise."""
    time_scale_short: float = 0.06
    seed: int = 1

    def __post_init__(self) -> None:
        for expectation in self.expectations:
            if expectation.leg not in self.legs:
                raise ValueError(f"{self.name}: an expectation of {expectation.leg!r}, which is not played")

    @property
    def legs(self) -> dict[str, Leg]:
        """In the order in which they are played."""
        return {"before": self.before} if self.after is None else {"before": self.before, "after": self.after}

    @property
    def capacity(self) -> float:
        """Seconds of work that the fleet does in a second: the sum of the speeds.

        What jobs gain by sharing a card (x1.15) is left out: it is there only when they collide.
        """
        return sum(profile.speed for profile in self.fleet)

    def make_trace(self, seed: int, requests: int) -> list[Arrival]:
        """The trace of a seed."""
        return self.trace(Random(f"{self.name}/{seed}"), requests)
