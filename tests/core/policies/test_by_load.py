"""The policies that compare: what each of them prefers."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from steelyard.core.node import Node
from steelyard.core.policies import create
from steelyard.core.policies.draw import one, two
from steelyard.core.policies.peak_ewma import PENALTY, load
from steelyard.core.work import Footprint

from ..building import balancer_of, chat, place, route_of
from .test_every_policy import nodes_of, pick


def loaded(*in_flight: int) -> list[Node]:
    nodes = nodes_of(len(in_flight))
    for node, count in zip(nodes, in_flight, strict=True):
        node.in_flight = count
    return nodes


def picked(name: str, nodes: list[Node], times: int = 300, seconds: float = 1.0, now: float = 0.0) -> Counter[str]:
    policy, rng = create(name), Random(1)
    counts: Counter[str] = Counter()
    for _ in range(times):
        node = policy.pick(nodes, chat(), Footprint(seconds=seconds), 0, now, rng)
        assert node is not None
        counts[node.name] += 1
    return counts


def test_least_request_takes_the_fewest_in_flight() -> None:
    assert picked("least-request", loaded(3, 1, 2)) == {"n1": 300}


def test_least_request_counts_weight_also_when_all_are_idle() -> None:
    nodes = loaded(5, 1)
    nodes[0].weight = 4
    assert picked("least-request", nodes) == {"n0": 300}, "6 / 4 is less than 2 / 1"
    nodes = loaded(0, 0)
    nodes[0].weight = 2
    assert picked("least-request", nodes) == {"n0": 300}


def test_power_of_two_takes_the_less_loaded_of_any_two() -> None:
    counts = picked("power-of-two", loaded(0, 1, 2), times=3000)
    assert counts["n2"] == 0, "it never wins"
    assert counts["n0"] / counts["n1"] == pytest.approx(2.0, rel=0.15), "least of two pairs of three"


def test_power_of_two_counts_weight() -> None:
    nodes = loaded(5, 1)
    nodes[0].weight = 4
    assert picked("power-of-two", nodes) == {"n0": 300}
    nodes.reverse()
    assert picked("power-of-two", nodes) == {"n0": 300}


def test_peak_ewma_avoids_the_node_that_stalled_and_comes_back_to_it() -> None:
    nodes = loaded(0, 0)
    nodes[0].latency.observe(10.0, 0.0)
    nodes[1].latency.observe(0.5, 0.0)
    assert picked("peak-ewma", nodes) == {"n1": 300}
    nodes[1].latency.observe(0.5, 60.0)
    assert picked("peak-ewma", nodes, now=60.0) == {"n0": 300}, "what is long ago is forgiven"


def test_peak_ewma_counts_what_is_pending() -> None:
    nodes = loaded(3, 0)
    nodes[0].latency.observe(0.1, 0.0)
    nodes[1].latency.observe(0.5, 0.0)
    assert picked("peak-ewma", nodes) == {"n0": 300}
    nodes[0].in_flight = 5
    assert picked("peak-ewma", nodes) == {"n1": 300}


def test_peak_ewma_tries_a_node_without_samples_with_one_request_at_a_time() -> None:
    (node,) = nodes_of(1)
    assert load(node, 0.0) == 0.0
    node.in_flight = 2
    assert load(node, 0.0) == PENALTY + 2
    node.latency.observe(0.5, 0.0)
    assert load(node, 0.0) == 1.5


def test_a_cold_node_beside_eight_warm_ones_is_neither_flooded_nor_forgotten() -> None:  # T23, by penalty alone
    balancer, route = balancer_of(9), route_of("peak-ewma")
    cold = balancer.fleet.nodes["n8"]
    for node in balancer.fleet.nodes.values():
        if node is not cold:
            node.latency.observe(0.5, 0.0)
    held = [place(balancer, route) for _ in range(400)]
    assert cold.in_flight == 1
    for placement in held:
        balancer.release(placement.lease, 1.0)
    cold.latency.observe(0.5, 1.0)
    for node in balancer.fleet.nodes.values():
        node.latency.observe(0.5, 1.0)
    held = [place(balancer, route, now=1.0) for _ in range(400)]
    assert 25 < cold.in_flight < 65


def test_least_response_time_herds_to_what_looked_fast() -> None:
    nodes = loaded(0, 50, 0)
    for node, seconds in zip(nodes, (0.5, 0.1, 0.3), strict=True):
        node.latency.observe(seconds, 0.0)
    assert picked("least-response-time", nodes) == {"n1": 300}


def test_least_response_time_takes_what_it_has_not_seen_for_infinitely_fast() -> None:
    nodes = loaded(0, 0, 0)
    nodes[0].latency.observe(0.1, 0.0)
    assert set(picked("least-response-time", nodes)) == {"n1", "n2"}


def test_least_response_time_slow_for_ten_then_fast_for_ten_wins_again() -> None:  # T20
    nodes = loaded(0, 0)
    nodes[1].latency.observe(0.2, 0.0)
    for number in range(10):
        nodes[0].latency.observe(5.0, float(number))
    assert picked("least-response-time", nodes) == {"n1": 300}
    for number in range(10):
        nodes[0].latency.observe(0.1, 10.0 + number)
    assert picked("least-response-time", nodes) == {"n0": 300}


def test_least_work_weighs_seconds_and_not_requests() -> None:
    nodes = loaded(4, 1)
    nodes[0].reserved_seconds, nodes[1].reserved_seconds = 2.0, 8.0
    assert picked("least-work", nodes) == {"n0": 300}


def test_least_work_counts_its_own_seconds_against_the_speed() -> None:
    nodes = loaded(1, 0)
    nodes[0].speed, nodes[0].reserved_seconds = 4.0, 2.0
    assert picked("least-work", nodes, seconds=8.0) == {"n0": 300}, "(2 + 8) / 4 is less than 8 / 1"
    assert picked("least-work", nodes, seconds=0.5) == {"n1": 300}, "2.5 / 4 is more than 0.5 / 1"


def test_random_is_uniform_whatever_the_weight() -> None:
    nodes = loaded(0, 9, 0, 0)
    nodes[0].weight = 10
    nodes[3].free_slots = 0
    counts = picked("random", nodes, times=3000)
    assert set(counts) == {"n0", "n1", "n2"}
    assert max(counts.values()) / min(counts.values()) < 1.15


@pytest.mark.parametrize("free", [1, 2, 3, 40])
def test_two_drawn_nodes_differ_and_every_pair_comes_up(free: int) -> None:
    nodes = nodes_of(40)
    for node in nodes[free:]:
        node.free_slots = 0
    rng = Random(1)
    seen: Counter[str] = Counter()
    for _ in range(4000):
        pair = two(nodes, 0, rng)
        assert pair is not None
        assert (pair[0] is pair[1]) == (free == 1)
        seen.update(node.name for node in pair)
        single = one(nodes, 0, rng)
        assert single in nodes[:free]
    assert len(seen) == free
    assert max(seen.values()) / min(seen.values()) < 1.6


def test_nothing_is_drawn_where_nothing_fits() -> None:
    nodes = nodes_of(3, gpu_memory=5)
    rng = Random(1)
    assert one(nodes, 6, rng) is None
    assert two(nodes, 6, rng) is None
    for name in ("power-of-two", "peak-ewma", "random"):
        assert pick(create(name), nodes, rng, memory=6) is None
