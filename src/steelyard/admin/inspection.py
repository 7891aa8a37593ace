"""Reads a running gateway for people: nodes, routes, the line, decisions. Nothing is changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, TypeVar

from steelyard.admin.answers import (
    Connections,
    DecisionAnswer,
    FootprintAnswer,
    FootprintRuleAnswer,
    LineAnswer,
    MatchAnswer,
    NodeAnswer,
    NodeHealth,
    Observed,
    QueueAnswer,
    ReadyAnswer,
    Reserved,
    RouteAnswer,
    TimeoutsAnswer,
)
from steelyard.core.node import UNLIMITED, Node, State
from steelyard.core.placement import Placement
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route
from steelyard.core.work import Footprint, Work

if TYPE_CHECKING:
    from steelyard.admin.running import Running
    from steelyard.proxy.gateway import Gateway

T = TypeVar("T", str, str | None)

CLIPPED = 256
"""Characters of a text from outside (a model's name, an error) that are shown."""


def all_nodes(gateway: Gateway) -> Iterator[Node]:
    """The nodes of the fleet, then those that are leaving it and still finish their requests."""
    nodes = gateway.balancer.fleet.nodes
    yield from nodes.values()
    for node in gateway.upstreams:
        if node.leaving and node.state is not State.GONE and nodes.get(node.name) is not node:
            yield node


def node_answer(service: Running, node: Node) -> NodeAnswer:
    gateway = service.gateway
    seen, health = node.observed, service.health.health.get(node)
    upstream = gateway.upstreams.get(node)
    return NodeAnswer(
        name=node.name,
        url=node.spec.url,
        engine=node.engine,
        state=node.state.value,
        breaker="closed",
        version=node.version,
        tier=node.tier,
        weight=node.weight,
        models=None if node.models is None else sorted(node.models),
        leaving=node.leaving,
        in_flight=node.in_flight,
        orphaned=node.orphaned,
        max_in_flight=None if node.max_in_flight == UNLIMITED else node.max_in_flight,
        memory_capacity=None if node.memory_capacity == UNLIMITED else node.memory_capacity,
        memory_free=None if node.memory_capacity == UNLIMITED else node.free_memory,
        reserved=Reserved(node.reserved_memory, node.reserved_tokens, node.reserved_seconds, node.in_flight),
        observed=Observed(
            memory_used=seen.memory_used,
            memory_total=seen.memory_total,
            kv_usage=seen.kv_usage,
            running=seen.running,
            waiting=seen.waiting,
            age=None if seen.at is None else gateway.clock() - seen.at,
        ),
        health=NodeHealth(clipped(health.last_error), health.failures) if health else NodeHealth("", 0),
        connections=Connections(len(upstream.idle), len(upstream.open)) if upstream else Connections(0, 0),
        served=node.served,
    )


def readiness(gateway: Gateway) -> ReadyAnswer:
    """Whether a balancer in front should send requests here, and why not."""
    states = Counter(node.state.value for node in gateway.balancer.fleet.nodes.values())
    if gateway.draining:
        reason = "draining: the gateway finishes its requests and ends"
    elif gateway.ready:
        reason = ""
    elif not states:
        reason = "no node is configured"
    else:
        reason = "no node has been ready yet: " + ", ".join(
            f"{count} {state}" for state, count in sorted(states.items())
        )
    return ReadyAnswer(ready=not reason, reason=reason, nodes=dict(states))


def route_answer(gateway: Gateway, route: Route) -> RouteAnswer:
    return RouteAnswer(
        name=route.name,
        match=MatchAnswer(route.match.path, list(route.match.models), sorted(route.match.headers)),
        policy=route.policy.name,
        memory="enforce" if route.enforce_memory else "ignore",
        footprints=[FootprintRuleAnswer(dict(row.when), row.memory, row.seconds) for row in route.footprints],
        timeouts=TimeoutsAnswer(
            route.timeouts.connect, route.timeouts.first_byte, route.timeouts.idle, route.timeouts.total
        ),
        retries=route.retry.retries,
        retry_budget=route.retry.budget,
        queue_size=route.queue.size,
        queue_wait=route.queue.wait,
        affinity_keys=[f"{kind}:{name}" for kind, name in route.session_sources],
        waiting=gateway.balancer.queue.of_route(route.name),
    )


def queue_answer(gateway: Gateway) -> QueueAnswer:
    queue, now = gateway.balancer.queue, gateway.clock()
    lengths = queue.lengths()
    lines = []
    for ticket in queue.heads():
        route, dialect, model, version, tried = ticket.key
        lines.append(
            LineAnswer(
                route,
                dialect,
                clipped(model),
                clipped(version),
                [node.name for node in tried],
                lengths[ticket.key],
                max(now - ticket.queued_at, 0.0),
            )
        )
    return QueueAnswer(queue.length, lines)


def decisions(gateway: Gateway, limit: int, node: str | None, model: str | None) -> list[DecisionAnswer]:
    """The latest decisions that concern this node and this model (any when None), newest first."""
    offset = time.time() - gateway.clock()
    found = (
        (at, work, outcome)
        for at, work, outcome in reversed(gateway.balancer.decisions)
        if (node is None or (isinstance(outcome, Placement) and outcome.node.name == node))
        and (model is None or model in (work.model, work.asked_model))
    )
    return [_decision(at + offset, work, outcome) for at, work, outcome in islice(found, limit)]


def _decision(at: float, work: Work, outcome: Placement | Refusal) -> DecisionAnswer:
    # The session is left out: it is the client's secret.
    answer = DecisionAnswer(
        at=at,
        outcome="placed",
        reason=clipped(outcome.reason if isinstance(outcome, Placement) else outcome.message),
        dialect=work.dialect,
        operation=work.operation,
        model=clipped(work.model),
        asked_model=clipped(work.asked_model),
        version=clipped(work.version),
        tenant=clipped(work.tenant),
        stream=work.stream,
        footprint=footprint_answer(work.footprint),
    )
    if isinstance(outcome, Placement):
        answer.node, answer.route = outcome.node.name, outcome.route.name
        answer.considered, answer.score, answer.queued = outcome.considered, finite(outcome.score), outcome.queued
    else:
        answer.outcome = outcome.code
    return answer


def footprint_answer(footprint: Footprint | None) -> FootprintAnswer | None:
    if footprint is None:
        return None
    return FootprintAnswer(footprint.memory, footprint.seconds, footprint.tokens, footprint.source)


def finite(score: float | None) -> float | None:
    """JSON has no infinity."""
    return score if score is not None and isfinite(score) else None


def clipped(text: T) -> T:
    """A text from outside, cut to what people read."""
    if text is None:
        return text
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= CLIPPED else text[: CLIPPED - 1] + "…"
