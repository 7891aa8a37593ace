"""From a validated configuration to what the core and the data path work with."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from steelyard.config.errors import ConfigError, Problem
from steelyard.config.route_schema import RouteConfig
from steelyard.config.schema import Config, NodeConfig
from steelyard.core.node import NodeSpec, NodeTLS
from steelyard.core.policies import Policy, create
from steelyard.core.quota import Quota
from steelyard.core.route import FootprintRule, Match, QueueRule, RetryRule, Route, Timeouts
from steelyard.proxy.cors import Cors
from steelyard.proxy.settings import Limits, Settings
from steelyard.proxy.tls import CertificateFiles, TLSFileError, node_context, server_context

EVERYTHING = "default"
"""Name of the route that a configuration without routes has."""


def node_specs(config: Config) -> list[NodeSpec]:
    """The configured nodes, in order."""
    return [_node(node) for node in config.nodes]


def _node(node: NodeConfig) -> NodeSpec:
    return NodeSpec(
        name=node.name,
        url=str(node.url),
        engine=node.engine,
        models=frozenset(node.models) if node.models is not None else None,
        version=node.version,
        tier=node.tier,
        weight=node.weight,
        max_in_flight=node.max_in_flight,
        gpu_memory=node.gpu_memory,
        metrics_url=str(node.metrics_url) if node.metrics_url is not None else None,
        api_key=node.api_key.get_secret_value() if node.api_key is not None else None,
        tls=NodeTLS(**node.tls.model_dump()) if node.tls is not None else None,
    )


def listener_tls(config: Config) -> ssl.SSLContext | None:
    """The TLS of the data plane; None where it is plain. Raises ConfigError."""
    if not config.certificates:
        return None
    try:
        return server_context([CertificateFiles(each.certificate, each.private_key) for each in config.certificates])
    except TLSFileError as error:
        raise ConfigError([Problem(error.path, 0, "certificates", error.message)]) from None


def check_node_tls(config: Config) -> None:
    """Raises ConfigError when a file for the TLS of a node cannot be used."""
    problems = []
    for index, spec in enumerate(node_specs(config)):
        if spec.tls is not None:
            try:
                node_context(spec.tls)
            except TLSFileError as error:
                problems.append(Problem(error.path, 0, f"nodes[{index}].tls", error.message))
    if problems:
        raise ConfigError(problems)


def routes_of(config: Config) -> tuple[RouteConfig, ...]:
    """The routes that are in force: without any, one that takes everything."""
    return config.routes or (RouteConfig(name=EVERYTHING),)


def settings(config: Config, current: Settings | None = None) -> Settings:
    """The settings of the data path. Policies that stay keep their cursors: a reload must not restart a round."""
    policies = {route.name: route.policy for route in current.routes} if current is not None else {}
    return Settings(
        routes=tuple(_route(route, config, policies) for route in routes_of(config)),
        limits=Limits(
            body=config.limits.body,
            body_memory=config.limits.body_memory,
            body_disk=config.limits.body_disk,
            body_directory=config.limits.body_directory or "",
            headers=config.limits.headers,
            connections=config.limits.connections,
        ),
        keys={key.key.get_secret_value(): key.tenant for key in config.auth.keys},
        trusted=config.trust.proxies,
        trust_unix=config.trust.unix,
        response_headers=config.response_headers,
        quotas={tenant: Quota(**each.model_dump()) for tenant, each in config.limits.tenants.items()},
        cors=None if config.cors is None else Cors(config.cors.origins, config.cors.credentials, config.cors.max_age),
        drain_delay=config.shutdown.delay,
        drain_grace=config.shutdown.grace,
    )


def _route(route: RouteConfig, config: Config, policies: Mapping[str, Policy]) -> Route:
    chosen = route.settings(config.defaults)
    policy = policies.get(route.name)
    if policy is None or policy.name != chosen.policy:
        policy = create(chosen.policy)
    return Route(
        name=route.name,
        policy=policy,
        match=Match(
            path=route.match.path,
            models=route.match.models,
            headers={name.lower(): value for name, value in route.match.headers.items()},
        ),
        enforce_memory=chosen.memory == "enforce",
        footprints=tuple(
            FootprintRule(
                when={str(name): value for name, value in row.when.items()}, memory=row.memory or 0, seconds=row.seconds
            )
            for row in route.footprints
        ),
        timeouts=Timeouts(
            connect=chosen.timeouts.connect,
            first_byte=chosen.timeouts.first_byte,
            idle=chosen.timeouts.idle,
            total=chosen.timeouts.total,
        ),
        retry=RetryRule(retries=chosen.retry.retries, budget=chosen.retry.budget),
        queue=QueueRule(size=chosen.queue.size, wait=chosen.queue.wait),
        fallback=route.fallback,
        session_sources=tuple(_source(key) for key in chosen.affinity.keys),
    )


def _source(key: str) -> tuple[str, str]:
    kind, _, name = key.partition(":")
    return kind, name.lower() if kind == "header" else name
