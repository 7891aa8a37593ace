"""Every key that a configuration may have, with its meaning, its default and the reason for the default.

The descriptions are the reference: docs/configuration.md is made from them. Some keys belong to features that are not
in this release; they are known here, so that they are told from spelling mistakes, and refused by checks.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from steelyard.config.addresses import Address, parse_node_url
from steelyard.config.route_schema import Defaults, RouteConfig
from steelyard.config.section import Section
from steelyard.config.values import (
    Count,
    Credential,
    DeviceMemory,
    Duration,
    Interval,
    ListenAddress,
    LogTarget,
    MessageSize,
    Name,
    NodeLocation,
    Origin,
    PositiveCount,
    Share,
    Text,
    TrustedNetwork,
)

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
        "count, and a PROXY header (version 2) at the start of their connections; from everybody else the former are "
        "removed, and the latter refused, since anyone could write them. Empty by default.",
    )
    unix: bool = Field(False, description="The same for whoever connects through a Unix socket.")


class NodeTLSConfig(Section):
    """How to speak TLS with a node. Files are PEM, and are read again on a reload."""

    ca: Text | None = Field(
        None,
        description="The file of the authorities that may have signed its certificate. Default: those that the system "
        "believes.",
    )
    server_name: Name | None = Field(
        None, description="The name in its certificate, which it is asked for (SNI). Default: the host in its `url`."
    )
    certificate: Text | None = Field(
        None, description="The file of the gateway's own certificate, for nodes that ask for one."
    )
    private_key: Text | None = Field(None, description="The file of its private key.")


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
        None, description="Where its metrics are, if not at the engine's usual place under `url`."
    )
    gpu_memory: DeviceMemory | None = Field(
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
    tls: NodeTLSConfig | None = Field(None, description="Of an https node.")


class Discovery(Section):
    """Where nodes come from, other than from this file."""

    file: Text | None = Field(None, description="Files (a pattern) with lists shaped like `nodes`; they are watched.")
    dns: Text | None = Field(None, description="A name whose addresses are the nodes.")
    kubernetes: Text | None = Field(None, description="A service, NAMESPACE/NAME, whose endpoints are the nodes.")
    registration: bool | None = Field(None, description="Whether nodes may register themselves.")


class Telemetry(Section):
    """How nodes are observed."""

    interval: Interval = Field(
        1.0,
        description="How often a node is asked for its health and models (its metrics: in a later release). What "
        "Steelyard itself placed is known at once; a second is soon enough for what it did not place.",
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


class TenantLimits(Section):
    """What one tenant may use."""

    requests: PositiveCount | None = Field(None, description="A minute. They may come in bursts. Default: no limit.")
    tokens: PositiveCount | None = Field(
        None, description="A minute, of prompt and output, as predicted and then as the node tells. Default: no limit."
    )
    concurrent: PositiveCount | None = Field(
        None, description="Requests at the same time, waiting ones too. Default: no limit."
    )


class Cors(Section):
    """Pages of other sites that may ask."""

    origins: tuple[Origin, ...] = Field(
        description="Their origins, such as `https://app.example`; `*` within one stands for anything between two "
        "dots, `*` alone for all."
    )
    credentials: bool = Field(False, description="Whether they may send cookies.")
    max_age: Duration = Field(600.0, description="How long a browser may remember the permission.")


class Limits(Section):
    """What clients may use of the gateway itself."""

    body: MessageSize = Field(
        64 * 2**20,
        description="One request's body; more gets 413. Enough for an hour of compressed audio or a few images.",
    )
    body_memory: MessageSize = Field(
        2**30,
        description="All bodies held at once: a request that waits, or that may be tried again, holds its body.",
    )
    body_disk: MessageSize = Field(
        16 * 2**30,
        description="All bodies on disk at once: one of more than 8 MiB that has to be looked into, or may be tried "
        "again, is held there, in a file without a name.",
    )
    body_directory: Text | None = Field(
        None, description="The directory for them. Default: the system's for temporary files (`TMPDIR`)."
    )
    headers: MessageSize = Field(
        64 * 2**10, description="One request's headers; more gets 431. Long cookies and tokens fit."
    )
    tenants: dict[Name, TenantLimits] = Field(
        {},
        description="Tenant: what it may use; more gets 429, and answers say in `x-ratelimit-*` what is left. `*` "
        "holds for each tenant that is not named. Each gateway counts for itself.",
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
        description="Where clients connect. Answers `/health` itself. `:8080` is every interface, "
        "`unix:/run/steelyard.sock` a Unix socket.",
    )
    admin: ListenAddress = Field(
        Address("127.0.0.1", 9901),
        description="Health, metrics and the admin API: a listener of its own, by default for this machine only.",
    )
    secret: tuple[Credential, ...] = Field(
        (), description="Keys for signing; the first signs, all verify, so that they can be changed in turn."
    )
    certificates: tuple[Certificate, ...] = Field(
        (),
        description="Serve clients over TLS (1.2 or newer). Of several, a client gets the one for the name that it "
        "asks for, else the first. Read again on a reload.",
    )
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
    cors: Cors | None = Field(
        None,
        description="Answer browsers for the nodes. Default: their questions, and the nodes' answers, are relayed.",
    )
    response_headers: bool = Field(
        True, description="Whether answers carry `x-steelyard-node`, `-reason`, `-version` and `-queue-ms`."
    )
    access_log: LogTarget = Field(
        "stderr",
        description="Where one JSON line a request goes. stderr: standard output stays free for what is asked for.",
    )
    shutdown: Shutdown = Field(Shutdown(), description="How the process ends.")
