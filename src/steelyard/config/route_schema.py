"""The keys of a route, and of the defaults that it inherits. See schema.py for the rest."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from steelyard.config.section import Section, overlaid
from steelyard.config.values import (
    AffinityKey,
    Count,
    DeviceMemory,
    Duration,
    FootprintValue,
    HeaderName,
    Name,
    PathPattern,
    PositiveCount,
    PositiveDuration,
    Share,
    Text,
)

PolicyName = Literal[
    "least-work",
    "round-robin",
    "weighted-round-robin",
    "random",
    "least-request",
    "power-of-two",
    "peak-ewma",
    "least-response-time",
    "consistent-hash",
    "tiered-weights",
    "window-latency",
    "prefix",
]
Memory = Literal["enforce", "ignore"]
FootprintSize = Literal[
    "operation",
    "model",
    "width",
    "height",
    "steps",
    "images",
    "samples",
    "prompt_tokens",
    "max_tokens",
    "audio_seconds",
    "body_bytes",
]
"""Attributes of a Work that a footprint table may name."""


class Affinity(Section):
    """What says that two requests belong together."""

    keys: tuple[AffinityKey, ...] = Field(
        ("header:X-User-ID", "header:X-Session-ID", "cookie:USER_SESSION", "body:prompt_cache_key", "body:user"),
        description="Where the session key is looked for; the first that is found counts. `[]` turns it off. In this "
        "release only `consistent-hash` uses it.",
    )
    ttl: PositiveDuration = Field(1800.0, description="How long a session that is not used stays bound to its node.")
    mode: Literal["prefer", "strict"] = Field("prefer", description="Whether a session may move when its node is busy.")


class Outlier(Section):
    """When a slow or failing node is left out for a while."""

    consecutive: PositiveCount = Field(5, description="Failures or slow answers in a row.")
    slow_after: PositiveDuration = Field(2.0, description="Nothing faster than this is called slow.")
    interval: PositiveDuration = Field(10.0, description="How often nodes are compared.")
    ejection: PositiveDuration = Field(30.0, description="How long a node is left out, times the number of ejections.")
    max_ejected: Share = Field(0.3, description="The largest part of the nodes that may be left out at once.")


class Timeouts(Section):
    """How long each phase of a request may last."""

    connect: PositiveDuration = Field(
        2.0, description="Connecting to the node. Nodes are near; a lost first packet is sent again after one second."
    )
    first_byte: PositiveDuration = Field(
        60.0,
        description="From the request sent to the first byte of a stream. A plain answer comes only when all of it is "
        "computed: it gets 10 minutes or three times its predicted time, whichever is longer.",
    )
    idle: PositiveDuration = Field(
        120.0, description="Between two reads of an answer or of a request's body. Well above the slowest token."
    )
    total: PositiveDuration = Field(
        1800.0,
        description="The whole request, so that nothing holds its memory for ever. Not for upgraded connections.",
    )


class QueueConfig(Section):
    """Requests that fit no node just now."""

    size: Count = Field(
        1000, description="How many may wait; the next one gets 429. It bounds memory, not patience. 0: nobody waits."
    )
    wait: Duration = Field(
        30.0, description="How long one may wait; then 503. Half of the 60 s after which many clients give up."
    )


class Retry(Section):
    """Trying again, on another node, where that is safe: a refused connection, a busy answer, a keep-alive race."""

    retries: Count = Field(1, description="How often. A second failure is rarely cured by a third try.")
    budget: Share = Field(
        0.2,
        description="Retries as a part of the live requests. When all nodes fail, retries must not double the load.",
    )


class Footprint(Section):
    """What requests of known sizes occupy: one row of a table."""

    when: dict[FootprintSize, FootprintValue] = Field(
        description="Sizes of the request (up to this) and names (equal to this) that must all hold; "
        "the first row that does counts. Put the smallest first. Names: `operation`, `model`; sizes: "
        + ", ".join(f"`{name}`" for name in get_args(FootprintSize)[2:])
        + ".",
    )
    memory: DeviceMemory | None = Field(
        None,
        description="Device memory. Default: none is counted, as for a request that no row fits; end the table with a "
        "row for the largest.",
    )
    seconds: PositiveDuration | None = Field(None, description="Time on an idle node. Default: from the sizes.")


class Weight(Section):
    """One step of tiered-weights."""

    below: Share | None = Field(None, description="Memory in use below this; the last step has none.")
    weight: Count = Field(description="The weight of a node in this step.")


class Context(Section):
    """Conversations kept by the gateway, so that a client sends only its new message."""

    mode: Literal["off", "inject"] = Field("off", description="`inject` puts the stored turns in front.")
    ttl: PositiveDuration = Field(1800.0, description="How long an unused conversation is kept.")
    max_tokens: PositiveCount = Field(3000, description="The most that is put in front; whole turns, newest first.")


class Versions(Section):
    """Which version of a model a request gets."""

    by: tuple[Text, ...] = Field((), description="Where a request names its version.")
    default: Text | None = Field(None, description="For those who name none.")
    split: dict[Text, Count] | None = Field(None, description="Weights instead of one default.")


class Match(Section):
    """What a request must look like. Everything that is given must hold; `{}` matches all."""

    path: PathPattern | None = Field(None, description="A path, `*` standing for anything: `/sdapi/*`.")
    models: tuple[Text, ...] = Field((), description="Names of models, `*` standing for anything: `sd-*`.")
    headers: dict[HeaderName, Text] = Field({}, description="Headers and the exact value of each.")


class Defaults(Section):
    """What a route inherits where it says nothing itself."""

    policy: PolicyName = Field(
        "least-work",
        description="How a node is chosen. `least-work` counts the predicted seconds that wait on each node: requests "
        "are not alike, so counting requests misleads.",
    )
    memory: Memory = Field(
        "enforce",
        description="`enforce`: a request goes only where its predicted memory is free. `ignore`: the naive balancer, "
        "which ends in out-of-memory errors; it is there for comparison.",
    )
    affinity: Affinity = Field(Affinity(), description="Sessions.")
    outlier: Outlier = Field(Outlier(), description="Slow and failing nodes.")
    timeouts: Timeouts = Field(Timeouts(), description="Time limits.")
    queue: QueueConfig = Field(QueueConfig(), description="Waiting.")
    retry: Retry = Field(Retry(), description="Trying again.")


class RouteConfig(Section):
    """Which requests get which behaviour. The first route that matches wins."""

    name: Name = Field(description="What it is called in logs and metrics.")
    match: Match = Field(Match(), description="Which requests it takes. Default: all.")
    policy: PolicyName | None = Field(None, description="Default: that of `defaults`.")
    memory: Memory | None = Field(None, description="Default: that of `defaults`.")
    weights: tuple[Weight, ...] | None = Field(None, description="The steps of `tiered-weights`.")
    footprints: tuple[Footprint, ...] = Field(
        (),
        description="What its requests occupy, where the sizes alone do not tell. The first row that matches counts.",
    )
    affinity: Affinity | None = Field(None, description="Keys that are written here replace those of `defaults`.")
    outlier: Outlier | None = Field(None, description="Keys that are written here replace those of `defaults`.")
    timeouts: Timeouts | None = Field(None, description="Keys that are written here replace those of `defaults`.")
    queue: QueueConfig | None = Field(None, description="Keys that are written here replace those of `defaults`.")
    retry: Retry | None = Field(None, description="Keys that are written here replace those of `defaults`.")
    context: Context | None = Field(None, description="Conversations kept by the gateway.")
    fallback: Text | None = Field(None, description="Another model, when no node can serve the one asked for.")
    versions: Versions | None = Field(None, description="Which version of the model.")

    def settings(self, defaults: Defaults) -> Defaults:
        """What holds on this route: ``defaults`` with everything that the route says itself."""
        return Defaults(
            policy=self.policy or defaults.policy,
            memory=self.memory or defaults.memory,
            affinity=overlaid(defaults.affinity, self.affinity),
            outlier=overlaid(defaults.outlier, self.outlier),
            timeouts=overlaid(defaults.timeouts, self.timeouts),
            queue=overlaid(defaults.queue, self.queue),
            retry=overlaid(defaults.retry, self.retry),
        )
