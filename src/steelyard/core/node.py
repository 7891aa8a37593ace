"""A Node: one inference server, its lifecycle, and the counters that decisions read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from steelyard.core.latency import Latency


class State(StrEnum):
    """Where a node is in its life. `down` is a fact (refused connection, failed health check), no judgement."""

    JOINING = "joining"
    WARMING = "warming"
    READY = "ready"
    DOWN = "down"
    DRAINING = "draining"
    GONE = "gone"


class Event(StrEnum):
    """What can happen to a node."""

    REACHED = "reached"
    """Its health check passed for the first time."""
    WARMED = "warmed"
    """Its models are known and it can serve."""
    FAILED = "failed"
    """It refused a connection, or failed its health check often enough."""
    RECOVERED = "recovered"
    """Its health check passes again."""
    DRAIN = "drain"
    """It gets no new work; what runs there runs to its end."""
    UNDRAIN = "undrain"
    EMPTIED = "emptied"
    """Draining, and its last lease has ended."""
    WITHDRAWN = "withdrawn"
    """It was removed by force."""


TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.JOINING: {
        Event.REACHED: State.WARMING,
        Event.FAILED: State.JOINING,
        Event.DRAIN: State.DRAINING,
        Event.WITHDRAWN: State.GONE,
    },
    State.WARMING: {
        Event.REACHED: State.WARMING,
        Event.WARMED: State.READY,
        Event.FAILED: State.JOINING,
        Event.DRAIN: State.DRAINING,
        Event.WITHDRAWN: State.GONE,
    },
    State.READY: {
        Event.REACHED: State.READY,
        Event.WARMED: State.READY,
        Event.RECOVERED: State.READY,
        Event.FAILED: State.DOWN,
        Event.DRAIN: State.DRAINING,
        Event.UNDRAIN: State.READY,
        Event.WITHDRAWN: State.GONE,
    },
    State.DOWN: {
        Event.FAILED: State.DOWN,
        Event.RECOVERED: State.READY,
        Event.DRAIN: State.DRAINING,
        Event.UNDRAIN: State.DOWN,
        Event.WITHDRAWN: State.GONE,
    },
    State.DRAINING: {
        Event.REACHED: State.DRAINING,
        Event.WARMED: State.DRAINING,
        Event.RECOVERED: State.DRAINING,
        Event.FAILED: State.DRAINING,
        Event.DRAIN: State.DRAINING,
        # Whether it is well is not known: it joins again.
        Event.UNDRAIN: State.JOINING,
        Event.EMPTIED: State.GONE,
        Event.WITHDRAWN: State.GONE,
    },
    State.GONE: {},
}
"""The lifecycle as data. A pair that is not here is a mistake of the caller and raises."""


class ImpossibleTransition(ValueError):
    """An event that cannot happen in the node's state."""


@dataclass(frozen=True, slots=True)
class NodeTLS:
    """How to speak TLS with a node: names of files, PEM."""

    ca: str | None = None
    """The authorities that may have signed its certificate; None: those that the system believes."""
    server_name: str | None = None
    """The name in its certificate, which it is asked for (SNI); None: the host of its URL."""
    certificate: str | None = None
    """The gateway's own certificate for it, with its key."""
    private_key: str | None = None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What is configured, or announced, of a node."""

    name: str
    url: str
    """http(s)://host:port[/prefix], without a trailing slash."""
    engine: str = "auto"
    models: frozenset[str] | None = None
    """None: ask the node."""
    version: str | None = None
    tier: str = "edge"
    weight: int = 1
    """Static weight. 0: no new traffic, under every policy."""
    max_in_flight: int | None = None
    gpu_memory: int | None = None
    """Usable device memory, bytes; None where device memory is not accounted for."""
    speed: float = 1.0
    """Work-seconds a second, against the reference node."""
    metrics_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tls: NodeTLS | None = None
    """Of an https node; None: as the system has it."""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class NodeState:
    """What was observed of a node, and when (seconds on the clock of `now`); None = never seen."""

    memory_used: int | None = None
    memory_total: int | None = None
    kv_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    at: float | None = None


UNLIMITED: Final = 1 << 62
"""Stands for "no limit" in comparisons: cheaper than a test for None."""


class Node:
    """One inference server as the balancer sees it.

    The counters are written by the Ledger only, the state by the Fleet only. Plain attributes: policies read them in
    loops over all candidates.
    """

    __slots__ = (
        "engine",
        "epoch",
        "free_memory",
        "free_slots",
        "in_flight",
        "latency",
        "leaving",
        "max_in_flight",
        "memory_capacity",
        "models",
        "name",
        "observed",
        "orphaned",
        "ready_since",
        "reserved_memory",
        "reserved_seconds",
        "reserved_tokens",
        "resident_memory",
        "served",
        "spec",
        "speed",
        "state",
        "tier",
        "version",
        "weight",
    )

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.engine = spec.engine
        """`auto` until it is recognised."""
        self.models = spec.models
        """None: not known yet, or (engine generic) whatever is asked."""
        self.version = spec.version
        self.tier = spec.tier
        self.weight = spec.weight
        self.speed = spec.speed
        self.state = State.JOINING
        self.leaving = False
        """It is no longer configured or discovered: once drained, it is gone."""
        self.ready_since: float | None = None
        """When slow start began; None when the node counts in full."""
        self.epoch = 0
        """Raised when all its leases became void; a lease of an older epoch no longer counts."""
        self.observed = NodeState()
        self.latency = Latency()
        self.max_in_flight = spec.max_in_flight if spec.max_in_flight is not None else UNLIMITED
        self.in_flight = 0
        self.orphaned = 0
        self.served = 0
        """Leases granted, ever."""
        self.reserved_memory = 0
        self.reserved_seconds = 0.0
        self.reserved_tokens = 0
        self.resident_memory = 0
        self.memory_capacity = spec.gpu_memory if spec.gpu_memory is not None else UNLIMITED
        """Usable device memory, bytes; UNLIMITED where it is not accounted for."""
        self.free_slots = self.max_in_flight
        self.free_memory = self.memory_capacity

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.state} in_flight={self.in_flight}>"

    def reconfigure(self, spec: NodeSpec) -> None:
        """Take over a changed spec of the same name and address; what is reserved stays reserved."""
        old, self.spec = self.spec, spec
        if spec.engine != old.engine:
            self.engine = spec.engine
        if spec.models != old.models:
            self.models = spec.models
        self.version = spec.version
        self.tier = spec.tier
        self.weight = spec.weight
        self.speed = spec.speed
        limit = spec.max_in_flight if spec.max_in_flight is not None else UNLIMITED
        self.free_slots += limit - self.max_in_flight
        self.max_in_flight = limit
        capacity = spec.gpu_memory if spec.gpu_memory is not None else UNLIMITED
        self.free_memory += capacity - self.memory_capacity
        self.memory_capacity = capacity

    def apply(self, event: Event) -> bool:
        """Move along the lifecycle table; True when the state changed. Raises ImpossibleTransition."""
        try:
            following = TRANSITIONS[self.state][event]
        except KeyError:
            raise ImpossibleTransition(f"node {self.name} is {self.state}: {event} cannot happen there") from None
        changed = following is not self.state
        self.state = following
        return changed
