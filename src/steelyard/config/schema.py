"""Every key that a configuration may have, with its meaning, its default and the reason for the default.

The descriptions are the reference: docs/configuration.md is made from them. Some keys belong to features that are not
in this release; they are known here, so that they are told from spelling mistakes, and refused by checks.py.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from steelyard.config.addresses import Address, parse_node_url
from steelyard.config.values import (
    AffinityKey,
    Count,
    Credential,
    Duration,
    FootprintValue,
    Kind,
    ListenAddress,
    Name,
    NodeLocation,
    PathPattern,
    PositiveCount,
    PositiveDuration,
    PositiveSize,
    Share,
    Text,
    TrustedNetwork,
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
Engine = Literal[
    "auto",
    "vllm",
    "sglang",
    "triton",
    "tgi",
    "llamacpp",
    "ollama",
    "tfserving",
    "sdwebui",
    "comfyui",
    "openai",
    "generic",
]
Tier = Literal["edge", "cloud"]
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


class Section(BaseModel):
    """A mapping of known keys that does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


def overlaid(base: S, over: S | None) -> S:
    """``base`` with the keys that were written in ``over``: how a route inherits from the defaults."""
    if over is None:
        return base
    return base.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})


class ApiKey(Section):
    """A key that clients may show, and whose it is."""

    key: Credential = Field(description="What the client sends as `Authorization: Bearer KEY` or `x-api-key: KEY`.")
    tenant: Name = Field("default", description="Whose requests these are, in metrics, limits and decisions.")


class Auth(Section):
    """Who may ask. Without keys everybody may, as one tenant."""

    keys: tuple[ApiKey, ...] = Field((), description="The keys that are accepted.")


class Trust(Section):
    """Whom to believe."""

    proxies: tuple[TrustedNetwork, ...] = Field(
        (),
        description="Networks of proxies in front of Steelyard. Their `X-Forwarded-*` and `x-steelyard-*` headers "
        "count; from everybody else these headers are removed, since anyone could write them. Empty by default.",
    )


class NodeConfig(Section):
    """One inference server."""

    url: NodeLocation = Field(
        description="http or https; a path is put in front of every path asked for there. `host:port` means http.",
    )
    name: Name = Field(
        default_factory=lambda known: parse_node_url(known["url"]).authority,
        description="What it is called in logs, metrics and commands. Default: host:port.",
    )
    engine: Engine = Field("auto", description="What runs there. `auto` finds out by asking the node.")
    metrics_url: NodeLocation | None = Field(
        None,
        description="Where its metrics are, if not at the engine's usual place under `url`. Kept for a later release: "
        "metrics of nodes are not read yet.",
    )
    gpu_memory: PositiveSize | None = Field(
        None,
        description="Usable device memory, where the node does not tell. A card of 24 GB exposes about 23.5GiB, and "
        "the driver's context takes some of that.",
    )
    models: Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        None, description="The models it serves. Default: the node is asked."
    )
    version: Name | None = Field(None, description="The version of its model, for requests that ask for one.")
    tier: Tier = Field("edge", description="Where it stands: near (edge) or far and elastic (cloud).")
    weight: Count = Field(
        1, description="Static weight, for the weighted policies. 0: no new requests, under every policy."
    )
    max_in_flight: PositiveCount | None = Field(
        None, description="Requests it may hold at once. Default: no limit; the engine batches and queues by itself."
    )
    api_key: Credential | None = Field(
        None,
        description="Sent to the node instead of the client's `Authorization`, which then never leaves the gateway.",
    )


class Discovery(Section):
    """Where nodes come from, other than from this file."""

    file: Text | None = Field(None, description="Files (a pattern) with lists shaped like `nodes`; they are watched.")
    dns: Text | None = Field(None, description="A name whose addresses are the nodes.")
    kubernetes: Text | None = Field(None, description="A service, NAMESPACE/NAME, whose endpoints are the nodes.")
    registration: bool | None = Field(None, description="Whether nodes may register themselves.")


class Telemetry(Section):
    """How nodes are observed."""

    interval: PositiveDuration = Field(
        1.0,
        description="How often a node is asked for its health and models (its metrics: in a later release). What "
        "Steelyard itself placed is known at once; a second is soon enough for what it did not place.",
    )


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
        "the first row that does counts. Put the smallest first.",
    )
    memory: PositiveSize | None = Field(
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
    headers: dict[str, Text] = Field({}, description="Headers and the exact value of each.")


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


class Edge(Section):
    """When requests leave the edge for the cloud."""

    spill_at: Share = Field(0.6, description="The load of the edge from which new requests may go to the cloud.")
    all_at: Share = Field(0.6, description="The load from which all new requests go there.")
    return_at: Share = Field(0.5, description="The load below which they stay again.")


class Stores(Section):
    """Where sessions and conversations are kept."""

    sessions: Text = Field(
        "sqlite:///steelyard.db", description="`memory`, `sqlite:///FILE` or `redis://HOST:PORT/DB`."
    )
    conversations: Text = Field(
        "sqlite:///steelyard.db", description="`memory`, `sqlite:///FILE` or `redis://HOST:PORT/DB`."
    )


class Limits(Section):
    """What clients may use of the gateway itself."""

    body: PositiveSize = Field(
        64 * 2**20,
        description="One request's body; more gets 413. Enough for an hour of compressed audio or a few images.",
    )
    body_memory: PositiveSize = Field(
        2**30,
        description="All bodies held at once: a request that waits, or that may be tried again, holds its body.",
    )
    headers: PositiveSize = Field(
        64 * 2**10, description="One request's headers; more gets 431. Long cookies and tokens fit."
    )
    connections: PositiveCount = Field(
        20000, description="Client connections at once; the next one is closed. Each takes a file descriptor."
    )


class Shutdown(Section):
    """How the process ends after SIGTERM."""

    delay: Duration = Field(
        5.0, description="How long it still accepts while `/ready` says 503, so that balancers in front notice first."
    )
    grace: Duration = Field(
        600.0, description="How long requests under way may take to finish. A long stream is minutes."
    )


class Certificate(Section):
    """A certificate of the gateway's own."""

    certificate: Text = Field(description="The file with the certificate chain, PEM.")
    private_key: Text = Field(description="The file with its private key, PEM.")


class Config(Section):
    """Everything a gateway is told."""

    listen: ListenAddress = Field(
        Address("0.0.0.0", 8080),
        description="Where clients connect. Answers `/health` itself. `:8080` is every interface.",
    )
    admin: ListenAddress = Field(
        Address("127.0.0.1", 9901),
        description="Health, metrics and the admin API: a listener of its own, by default for this machine only.",
    )
    secret: tuple[Credential, ...] = Field(
        (), description="Keys for signing; the first signs, all verify, so that they can be changed in turn."
    )
    certificates: tuple[Certificate, ...] = Field((), description="Serve clients over TLS.")
    auth: Auth = Field(Auth(), description="Who may ask.")
    trust: Trust = Field(Trust(), description="Whose headers count.")
    nodes: tuple[NodeConfig, ...] = Field((), description="The inference servers.")
    discovery: Discovery = Field(Discovery(), description="Nodes that are found.")
    aliases: dict[Name, Name] = Field(
        {}, description="Other names for models: `gpt-4: llama-3.1-70b`. A name may lead to another name."
    )
    telemetry: Telemetry = Field(Telemetry(), description="How nodes are observed.")
    defaults: Defaults = Field(Defaults(), description="What routes inherit.")
    routes: tuple[RouteConfig, ...] = Field(
        (), description="Which requests get which behaviour. Without routes all requests get the defaults."
    )
    edge: Edge = Field(Edge(), description="Edge and cloud.")
    stores: Stores = Field(Stores(), description="Where state is kept.")
    limits: Limits = Field(Limits(), description="What clients may use of the gateway.")
    response_headers: bool = Field(
        True, description="Whether answers carry `x-steelyard-node`, `-reason`, `-version` and `-queue-ms`."
    )
    access_log: Annotated[str, Kind("`stderr`, `stdout`, `off` or a file")] = Field(
        "stderr",
        description="Where one JSON line a request goes. stderr: standard output stays free for what is asked for.",
    )
    shutdown: Shutdown = Field(Shutdown(), description="How the process ends.")
