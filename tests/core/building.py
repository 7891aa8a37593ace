"""Fleets, balancers and waiters for the tests of the core, and the invariants that hold after every scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event, Node, NodeSpec
from steelyard.core.placement import Placement
from steelyard.core.policies import create
from steelyard.core.queue import Ticket
from steelyard.core.refusal import Refusal
from steelyard.core.route import FootprintRule, QueueRule, Route
from steelyard.core.work import Footprint, Work

GB = 10**9
MODEL = "llama"


def add_ready(fleet: Fleet, name: str, now: float = 0.0, **spec: Any) -> Node:
    """A node that went through its whole youth at `now`."""
    spec = {"engine": "vllm", "models": frozenset({MODEL})} | spec
    node = fleet.add(NodeSpec(name, f"http://{name}:8000", **spec))
    fleet.apply(node, Event.REACHED, now)
    fleet.apply(node, Event.WARMED, now)
    return node


def ready_fleet(count: int, **spec: Any) -> Fleet:
    """n0, n1, ..., all alike and ready since 0."""
    fleet = Fleet()
    for number in range(count):
        add_ready(fleet, f"n{number}", **spec)
    return fleet


def balancer_of(count: int, seed: int = 1, **spec: Any) -> Balancer:
    return Balancer(ready_fleet(count, **spec), Random(seed))


def route_of(
    policy: str = "least-work", name: str = "route", size: int = 1000, wait: float = 30.0, **rest: Any
) -> Route:
    return Route(name, create(policy), queue=QueueRule(size, wait), **rest)


class Counting:
    """A policy, and how often it was asked. It holds one: compiled classes have no subclasses that are not."""

    def __init__(self, policy: str) -> None:
        self._policy = create(policy)
        self.name, self.sampled = self._policy.name, self._policy.sampled
        self.slow_start = self._policy.slow_start
        self.asked = 0

    def pick(self, *arguments: Any) -> Node | None:
        self.asked += 1
        return self._policy.pick(*arguments)

    def score(self, *arguments: Any) -> float | None:
        return self._policy.score(*arguments)


def chat(model: str | None = MODEL, **rest: Any) -> Work:
    return Work("openai", "chat", model, **rest)


def heavy(memory: int, seconds: float = 1.0, **rest: Any) -> Work:
    """A work that needs `memory` bytes."""
    work = chat(**rest)
    work.footprint = Footprint(memory=memory, seconds=seconds, source="test")
    return work


def table(memory: int, seconds: float | None = None) -> list[FootprintRule]:
    return [FootprintRule({}, memory, seconds)]


class Waiting:
    """A waiter that remembers what it was told, and may do something when it is placed."""

    def __init__(self, then: Callable[[Placement], None] | None = None) -> None:
        self.placement: Placement | None = None
        self.refusal: Refusal | None = None
        self.then = then

    def placed(self, placement: Placement) -> None:
        assert self.placement is None, "placed twice"
        assert self.refusal is None, "placed after it was refused"
        self.placement = placement
        if self.then is not None:
            self.then(placement)

    def refused(self, refusal: Refusal) -> None:
        assert self.refusal is None, "refused twice"
        assert self.placement is None, "refused after it was placed"
        self.refusal = refusal


def place(balancer: Balancer, route: Route, work: Work | None = None, now: float = 0.0, **rest: Any) -> Placement:
    """Admit a work that must be placed at once."""
    outcome = balancer.admit(work or chat(), route, now, **rest)
    assert isinstance(outcome, Placement), outcome
    return outcome


def wait(balancer: Balancer, route: Route, waiter: Waiting, work: Work | None = None, now: float = 0.0) -> Ticket:
    """Admit a work that must wait."""
    outcome = balancer.admit(work or chat(), route, now, waiter)
    assert isinstance(outcome, Ticket), outcome
    return outcome


def refuse(balancer: Balancer, route: Route, work: Work, now: float = 0.0, **rest: Any) -> Refusal:
    """Admit a work that must be refused at once."""
    outcome = balancer.admit(work, route, now, **rest)
    assert isinstance(outcome, Refusal), outcome
    return outcome


def release_all(balancer: Balancer, placements: Sequence[Placement], now: float = 0.0) -> None:
    for placement in placements:
        assert balancer.release(placement.lease, now)


def assert_settled(balancer: Balancer) -> None:
    """I0: nothing is reserved, nobody waits, nothing is remembered of anybody."""
    assert balancer.ledger.live == 0
    assert balancer.ledger.orphaned == 0
    assert balancer.queue.length == 0
    assert balancer.queue.heads() == []
    assert balancer.queue.of_route("route") == 0
    assert balancer.retrying == 0
    for node in balancer.fleet.nodes.values():
        assert_idle(node)


def assert_idle(node: Node) -> None:
    assert node.in_flight == 0
    assert node.orphaned == 0
    assert node.reserved_seconds == 0.0
    assert node.reserved_memory == 0
    assert node.reserved_tokens == 0
    assert node.free_slots == node.max_in_flight
    assert node.free_memory == node.memory_capacity - node.resident_memory
