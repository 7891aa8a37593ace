"""Slow start: a node that joins a running fleet gets a growing share of its part, under every policy (T23)."""

from __future__ import annotations

from random import Random

import pytest

from steelyard.core.balancer import Balancer
from steelyard.core.fleet import SLOW_START_SECONDS, Fleet
from steelyard.core.node import Event

from .building import Counting, add_ready, assert_settled, balancer_of, chat, place, ready_fleet, release_all, route_of
from .policies.test_every_policy import POLICIES

SLOW = [name for name in POLICIES if name != "consistent-hash"]


def part_of_the_cold(name: str, age: float, warm: int = 8, requests: int = 3000, live: int = 90) -> float:
    """What part of its even share a node gets that joined `age` seconds ago: requests come, stay a while, and go."""
    fleet = ready_fleet(warm)
    for node in fleet.nodes.values():
        node.latency.observe(1.0, 100.0)
    cold = add_ready(fleet, "cold", now=100.0)
    balancer, route = Balancer(fleet, Random(3)), route_of(name)
    held = []
    now = 100.0 + age
    for _ in range(requests):
        held.append(place(balancer, route, now=now))
        if len(held) == live:
            placement = held.pop(0)
            # As every node answers, so does the cold one: in time it has samples like the others.
            placement.node.latency.observe(1.0, now)
            balancer.release(placement.lease, now)
    release_all(balancer, held)
    assert_settled(balancer)
    return cold.served / (requests / (warm + 1))


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("warm", [8, 30])
def test_a_cold_node_is_neither_flooded_nor_forgotten(name: str, warm: int) -> None:
    assert 0.03 < part_of_the_cold(name, age=0.0, warm=warm) < 0.4


@pytest.mark.parametrize("name", SLOW)
def test_nor_is_it_when_all_are_idle_and_it_looks_as_good_as_any(name: str) -> None:
    assert 0.03 < part_of_the_cold(name, age=0.0, live=1) < 0.4


@pytest.mark.parametrize("name", SLOW)
def test_half_way_it_gets_about_half(name: str) -> None:
    assert part_of_the_cold(name, age=SLOW_START_SECONDS / 2) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "least-response-time"])
def test_after_it_the_node_counts_in_full(name: str) -> None:
    assert part_of_the_cold(name, age=SLOW_START_SECONDS) == pytest.approx(1.0, abs=0.2)


def test_consistent_hash_gives_it_its_sessions_at_once_and_not_to_and_fro() -> None:
    fleet = ready_fleet(4)
    add_ready(fleet, "cold", now=100.0)
    balancer, route = Balancer(fleet, Random(3)), route_of("consistent-hash")
    for number in range(200):
        homes = set()
        for _ in range(5):
            placement = place(balancer, route, chat(session=f"s{number}"), now=100.0)
            homes.add(placement.node.name)
            balancer.release(placement.lease, 100.0)
        assert len(homes) == 1
    assert fleet.nodes["cold"].served > 100


def test_consistent_hash_is_asked_once_since_it_would_only_say_the_same_again() -> None:
    fleet = Fleet()
    add_ready(fleet, "gone").weight = 0
    add_ready(fleet, "cold", now=100.0)
    balancer, route = Balancer(fleet, Random(3)), route_of("consistent-hash")
    policy = route.policy = Counting("consistent-hash")
    release_all(balancer, [place(balancer, route, chat(session=f"s{number}"), now=100.0) for number in range(50)])
    assert policy.asked == 50


@pytest.mark.parametrize("name", POLICIES)
def test_a_fleet_of_cold_nodes_serves(name: str) -> None:
    fleet = ready_fleet(1)
    add_ready(fleet, "a", now=100.0)
    add_ready(fleet, "b", now=100.0)
    fleet.apply(fleet.nodes["n0"], Event.FAILED, 101.0)
    balancer, route = Balancer(fleet, Random(1)), route_of(name)
    held = [place(balancer, route, now=101.0) for _ in range(200)]
    assert {placement.node.name for placement in held} == {"a", "b"}
    release_all(balancer, held)
    assert_settled(balancer)


@pytest.mark.parametrize("name", POLICIES)
def test_a_cold_node_takes_what_no_warm_one_can(name: str) -> None:
    fleet = ready_fleet(2, max_in_flight=3)
    cold = add_ready(fleet, "cold", now=100.0, max_in_flight=100)
    balancer, route = Balancer(fleet, Random(1)), route_of(name)
    held = [place(balancer, route, now=100.0) for _ in range(60)]
    assert cold.in_flight >= 54
    release_all(balancer, held)
    assert_settled(balancer)


def test_a_cold_node_elsewhere_changes_nothing() -> None:
    fleet = ready_fleet(3)
    add_ready(fleet, "images", now=100.0, engine="sdwebui", models=frozenset({"sd-1.5"}))
    placement = place(balancer := Balancer(fleet, Random(1)), route_of(), now=100.0)
    assert placement.considered == 3
    balancer.release(placement.lease, 100.0)


def test_time_alone_ends_a_slow_start() -> None:
    balancer = balancer_of(1)
    late = add_ready(balancer.fleet, "late", now=100.0)
    balancer.tick(100.0 + SLOW_START_SECONDS - 1)
    assert balancer.fleet.ramping == {late}
    balancer.tick(100.0 + SLOW_START_SECONDS)
    assert balancer.fleet.ramping == set()
