"""What the admin API answers, as data. The OpenAPI document is made from these types."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Reserved(Struct):
    """What the leases on a node hold, live and orphaned."""

    memory: Annotated[int, Meta(description="Bytes of device memory.")]
    kv_tokens: Annotated[int, Meta(description="Tokens of KV cache.")]
    seconds: Annotated[float, Meta(description="Predicted seconds of work.")]
    slots: Annotated[int, Meta(description="Of `max_in_flight`.")]


class Observed(Struct):
    """What the node last told of itself; null is what was never seen."""

    memory_used: int | None
    memory_total: int | None
    kv_usage: Annotated[float | None, Meta(description="Used part of the KV cache, 0 to 1.")]
    running: int | None
    waiting: int | None
    age: Annotated[float | None, Meta(description="Seconds since it was seen.")]


class NodeHealth(Struct):
    """What the health checks found."""

    last_error: Annotated[str, Meta(description="Of the last check; empty when it passed.")]
    failures: Annotated[int, Meta(description="Failed checks in a row.")]


class Connections(Struct):
    """Connections to the node."""

    idle: int
    open: Annotated[int, Meta(description="All of them, idle or in use.")]


class NodeAnswer(Struct):
    """One node."""

    name: str
    url: str
    engine: str
    state: str
    breaker: str
    version: str | None
    tier: str
    weight: int
    models: Annotated[list[str] | None, Meta(description="Null: not known, it is asked for any.")]
    leaving: Annotated[bool, Meta(description="No longer configured: it is gone when its last request has ended.")]
    in_flight: int
    orphaned: Annotated[int, Meta(description="Of those in flight: the client is gone, the node goes on computing.")]
    max_in_flight: Annotated[int | None, Meta(description="Null: no limit.")]
    memory_capacity: Annotated[int | None, Meta(description="Usable bytes; null: memory is not accounted for.")]
    memory_free: int | None
    reserved: Reserved
    observed: Observed
    health: NodeHealth
    connections: Connections
    served: Annotated[int, Meta(description="Requests placed there, ever.")]


class NodesAnswer(Struct):
    """All nodes."""

    nodes: list[NodeAnswer]


class TransitionAnswer(Struct):
    """What came of a drain or an undrain."""

    changed: Annotated[bool, Meta(description="False: it was so already.")]
    node: NodeAnswer


class MatchAnswer(Struct):
    """Which requests a route takes. Everything that is given must hold."""

    path: str | None
    models: list[str]
    headers: Annotated[list[str], Meta(description="Names of headers; their values may be credentials.")]


class FootprintRuleAnswer(Struct):
    """One row of a route's footprint table."""

    when: dict[str, int | float | str]
    memory: int
    seconds: float | None


class TimeoutsAnswer(Struct):
    """Seconds."""

    connect: float
    first_byte: float
    idle: float
    total: float


class RouteAnswer(Struct):
    """One route."""

    name: str
    match: MatchAnswer
    policy: str
    memory: Annotated[str, Meta(description="enforce or ignore.")]
    footprints: list[FootprintRuleAnswer]
    timeouts: TimeoutsAnswer
    retries: int
    retry_budget: float
    queue_size: int
    queue_wait: Annotated[float, Meta(description="Seconds.")]
    affinity_keys: list[str]
    waiting: Annotated[int, Meta(description="Requests in its lines.")]


class RoutesAnswer(Struct):
    """All routes; the first that matches wins."""

    routes: list[RouteAnswer]


class LineAnswer(Struct):
    """Requests that wait for the same nodes."""

    route: str
    dialect: str
    model: str | None
    version: str | None
    tried: Annotated[list[str], Meta(description="Nodes that they were sent to before: they wait for the others.")]
    length: int
    oldest_wait: Annotated[float, Meta(description="Seconds that the first of them has waited.")]


class QueueAnswer(Struct):
    """Who waits."""

    length: int
    lines: Annotated[list[LineAnswer], Meta(description="The longest wait first.")]


class FootprintAnswer(Struct):
    """What a request is predicted to occupy."""

    memory: Annotated[int, Meta(description="Bytes.")]
    seconds: float
    tokens: int
    source: str


class DecisionAnswer(Struct, kw_only=True):
    """One placement, or one refusal."""

    at: Annotated[float, Meta(description="Unix time.")]
    outcome: Annotated[str, Meta(description="placed, or the code of the error.")]
    reason: Annotated[str, Meta(description="In words and numbers.")]
    node: str | None = None
    route: Annotated[str | None, Meta(description="Of placements.")] = None
    considered: Annotated[int | None, Meta(description="Nodes among which it was picked.")] = None
    score: Annotated[float | None, Meta(description="What the policy compared, where it compares.")] = None
    queued: Annotated[float | None, Meta(description="Seconds in the line.")] = None
    dialect: str
    operation: str
    model: str | None
    asked_model: Annotated[str | None, Meta(description="As the client wrote it, before aliases.")]
    version: str | None
    tenant: str
    stream: bool
    footprint: FootprintAnswer | None


class DecisionsAnswer(Struct):
    """The latest decisions, newest first."""

    decisions: list[DecisionAnswer]


class OptionAnswer(Struct):
    """One node in an explanation."""

    node: str
    state: str
    objection: Annotated[str | None, Meta(description="Why it cannot take the request; null when it can.")]
    score: Annotated[float | None, Meta(description="What the policy compares; the least wins.")]


class ExplainAnswer(Struct):
    """Where a request would go now, and why."""

    outcome: Annotated[
        str, Meta(description="placed, queued, gateway (it answers by itself), or the code of the error.")
    ]
    status: Annotated[int | None, Meta(description="The status of the error that the client would get.")]
    reason: str
    node: Annotated[str | None, Meta(description="The one that the policy likes best; null where it does not compare.")]
    route: str | None
    policy: str | None
    dialect: str
    operation: str
    model: str | None
    asked_model: str | None
    version: str | None
    stream: bool
    has_session: Annotated[bool, Meta(description="Whether the request names a session.")]
    footprint: FootprintAnswer | None
    options: Annotated[list[OptionAnswer], Meta(description="Every node; those that can take the request first.")]


class VersionAnswer(Struct):
    """What runs here."""

    version: str
    python: str
    started_at: Annotated[float, Meta(description="Unix time.")]


class HealthAnswer(Struct):
    """The process lives."""

    status: str


class ReadyAnswer(Struct):
    """Whether requests should be sent here."""

    ready: bool
    reason: Annotated[str, Meta(description="Why not; empty when ready.")]
    nodes: Annotated[dict[str, int], Meta(description="How many nodes are in which state.")]


class ErrorDetail(Struct):
    """What is wrong."""

    code: str
    message: str


class ErrorAnswer(Struct):
    """An error."""

    error: ErrorDetail
