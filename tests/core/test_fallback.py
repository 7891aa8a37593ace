"""Another model, when no node can serve the one that was asked for."""

from __future__ import annotations

from random import Random

import pytest

from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event
from steelyard.core.work import Footprint
from tests.core.building import Waiting, add_ready, assert_settled, chat, place, refuse, release_all, route_of


def fleet_of(**models: str) -> Balancer:
    fleet = Fleet({"alias": "small"})
    for name, model in models.items():
        add_ready(fleet, name, engine="vllm", models=frozenset({model}))
    return Balancer(fleet, Random(1))


@pytest.mark.parametrize("fallback", ["small", "alias"])
@pytest.mark.parametrize("policy", ["least-work", "random"])
def test_it_is_used_when_the_nodes_of_the_model_are_down(policy: str, fallback: str) -> None:
    balancer, route = fleet_of(a="large", b="small"), route_of(policy)
    route.fallback = fallback
    first = place(balancer, route, chat("large"))
    assert (first.node.name, "instead" in first.reason) == ("a", False)
    balancer.fleet.apply(first.node, Event.FAILED, 1.0)
    work = chat("large")
    second = place(balancer, route, work, 2.0)
    assert second.node.name == "b"
    assert (work.model, work.asked_model, work.fallback) == ("small", "large", True)
    assert second.reason.endswith("; small instead of large")
    release_all(balancer, [first, second])
    assert_settled(balancer)


def test_a_model_that_nobody_knows_has_none() -> None:
    balancer, route = fleet_of(b="small"), route_of("least-work")
    route.fallback = "small"
    assert refuse(balancer, route, chat("nonsense")).code == "unknown_model"


@pytest.mark.parametrize("fallback", [None, "large", "nonsense"])
def test_where_it_cannot_serve_either_the_refusal_is_that_of_the_model_asked_for(fallback: str | None) -> None:
    balancer, route = fleet_of(a="large", b="small"), route_of("least-work")
    route.fallback = fallback
    balancer.fleet.apply(balancer.fleet.nodes["a"], Event.FAILED, 1.0)
    work = chat("large")
    assert refuse(balancer, route, work, 2.0).code == "no_node"
    assert (work.model, work.fallback) == ("large", False)


def test_it_is_tried_once() -> None:
    balancer, route = fleet_of(a="large", b="small"), route_of("least-work")
    route.fallback = "small"
    for node in balancer.fleet.nodes.values():
        balancer.fleet.apply(node, Event.FAILED, 1.0)
    assert refuse(balancer, route, chat("large"), 2.0).code == "no_node"


def test_a_request_whose_only_node_died_goes_on_with_it() -> None:
    balancer, route = fleet_of(a="large", b="small"), route_of("least-work")
    route.fallback = "small"
    work = chat("large")
    first = place(balancer, route, work)
    second = place(balancer, route, work, 1.0, excluded=(first.node,))
    assert second.node.name == "b"
    release_all(balancer, [first, second])
    again = balancer.admit(work, route, 2.0, None, (first.node, second.node))
    assert getattr(again, "code", "") == "no_node"


def test_where_another_node_of_the_model_is_only_full_it_is_not_used() -> None:
    balancer, route = fleet_of(a="large", c="large", b="small"), route_of("least-work")
    route.fallback = "small"
    for node in balancer.fleet.nodes.values():
        node.max_in_flight = node.free_slots = 1
    held = [place(balancer, route, chat("large")) for _ in range(2)]
    assert refuse(balancer, route, chat("large"), excluded=(held[0].node,)).code == "no_node"
    waiter = Waiting()
    balancer.admit(chat("large"), route, 0.0, waiter)
    assert balancer.queue.length == 1
    release_all(balancer, held)
    assert waiter.placement is not None
    assert waiter.placement.node.name in ("a", "c")
    release_all(balancer, [waiter.placement])


def test_it_is_weighed_anew_unless_somebody_said_what_it_weighs() -> None:
    for source, kept in (("hint", True), ("table", False)):
        balancer, route = fleet_of(a="large", b="small"), route_of("least-work")
        route.fallback = "small"
        balancer.fleet.apply(balancer.fleet.nodes["a"], Event.FAILED, 1.0)
        work = chat("large")
        footprint = work.footprint = Footprint(memory=5, source=source)
        placement = place(balancer, route, work, 2.0)
        assert (work.footprint is footprint) is kept
        release_all(balancer, [placement])
