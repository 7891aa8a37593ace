"""What holds for every policy: it picks a node that fits whenever there is one, keeps no counters, and is even."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core.balancer import IGNORED
from steelyard.core.node import Node, NodeSpec
from steelyard.core.policies import Policy, create, names, register
from steelyard.core.work import Footprint

from ..building import GB, Waiting, assert_settled, balancer_of, chat, heavy, place, release_all, route_of, wait

POLICIES = [
    "consistent-hash",
    "least-request",
    "least-response-time",
    "least-work",
    "peak-ewma",
    "power-of-two",
    "random",
    "round-robin",
    "weighted-round-robin",
]
BY_LOAD = ["least-request", "least-work", "peak-ewma", "power-of-two"]
every_policy = pytest.mark.parametrize("name", POLICIES)


def nodes_of(count: int, **spec: object) -> list[Node]:
    return [Node(NodeSpec(f"n{number}", f"http://n{number}", **spec)) for number in range(count)]  # type: ignore[arg-type]


def pick(policy: Policy, nodes: list[Node], rng: Random, memory: int = 0, session: str | None = None) -> Node | None:
    return policy.pick(nodes, chat(session=session), Footprint(), memory, 0.0, rng)


def test_they_are_found_by_name() -> None:
    assert names() == POLICIES
    for name in POLICIES:
        assert create(name).name == name
        assert create(name) is not create(name), "a cursor belongs to one route"
    with pytest.raises(KeyError):
        create("best")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="named random exists"):
        register(type(create("random")))


NODES = st.lists(
    st.tuples(
        st.sampled_from([-1, 0, 1, 5]),
        st.sampled_from([-2, 0, 3, 10]),
        st.integers(0, 5),
        st.integers(1, 4),
        st.none() | st.floats(0.0, 20.0),
    ),
    min_size=1,
    max_size=12,
)


@every_policy
@given(rows=NODES, memory=st.sampled_from([IGNORED, 0, 3, 4, 99]), session=st.none() | st.text(), seed=st.integers())
@settings(max_examples=80, deadline=None)
def test_a_node_that_fits_whenever_there_is_one(
    name: str,
    rows: list[tuple[int, int, int, int, float | None]],
    memory: int,
    session: str | None,
    seed: int,
) -> None:
    nodes = nodes_of(len(rows))
    for node, (slots, free, in_flight, weight, seconds) in zip(nodes, rows, strict=True):
        node.free_slots, node.free_memory, node.in_flight, node.weight = slots, free, in_flight, weight
        node.reserved_seconds = in_flight * 0.5
        if seconds is not None:
            node.latency.observe(seconds, 0.0)
    fitting = [node for node in nodes if node.free_slots > 0 and node.free_memory >= memory]
    policy, rng = create(name), Random(seed)
    for _ in range(5):
        picked = pick(policy, nodes, rng, memory, session)
        assert picked in fitting if fitting else picked is None


@every_policy
def test_the_only_node_with_a_free_slot_among_a_thousand_is_found(name: str) -> None:
    nodes = nodes_of(1000, max_in_flight=1)
    for node in nodes:
        node.free_slots, node.in_flight = 0, 1
    policy, rng = create(name), Random(1)
    assert pick(policy, nodes, rng, session="s") is None
    nodes[617].free_slots, nodes[617].in_flight = 1, 0
    for _ in range(3):
        assert pick(policy, nodes, rng, session="s") is nodes[617]
        assert pick(policy, nodes, rng) is nodes[617]


@every_policy
@given(changes=st.lists(st.sets(st.integers(0, 9), min_size=1), max_size=30), seed=st.integers())
@settings(max_examples=50, deadline=None)
def test_nodes_that_come_and_go_are_never_picked_when_they_are_gone(
    name: str, changes: list[set[int]], seed: int
) -> None:
    nodes, policy, rng = nodes_of(10), create(name), Random(seed)
    for change in changes:
        fresh = [nodes[number] for number in sorted(change)]
        assert pick(policy, fresh, rng, session="s") in fresh
        assert pick(policy, fresh, rng) in fresh


@every_policy
def test_a_list_that_shrinks_while_it_is_known_is_not_indexed_by_its_old_length(name: str) -> None:
    nodes, policy, rng = nodes_of(6), create(name), Random(1)
    while nodes:
        for _ in range(7):
            assert pick(policy, nodes, rng, session="s") in nodes
        nodes.pop(0)


@every_policy
def test_even_when_every_call_brings_a_fresh_equal_list(name: str) -> None:  # T15
    nodes, policy, rng = nodes_of(8), create(name), Random(1)
    counts: Counter[str] = Counter()
    for _ in range(4000):
        node = pick(policy, list(nodes), rng)
        assert node is not None
        counts[node.name] += 1
    assert len(counts) == 8
    if name in ("round-robin", "weighted-round-robin"):
        assert set(counts.values()) == {500}
    else:
        assert max(counts.values()) / min(counts.values()) < 1.3


@every_policy
def test_ties_are_broken_at_random(name: str) -> None:  # T22
    nodes = nodes_of(8)
    first = {str(pick(create(name), nodes, Random(seed))) for seed in range(200)}
    assert len(first) == 8, "a gateway that starts must not begin where all the others begin"


@pytest.mark.parametrize("name", BY_LOAD)
@pytest.mark.parametrize("count", [2, 8, 64])
def test_five_hundred_requests_between_two_looks_at_telemetry_do_not_herd(name: str, count: int) -> None:  # T22
    balancer, route = balancer_of(count), route_of(name)
    for node in balancer.fleet.nodes.values():
        node.latency.observe(0.5, 0.0)
    requests = 500 if count < 64 else 2000
    held = [place(balancer, route) for _ in range(requests)]
    shares = Counter(placement.node.name for placement in held)
    assert len(shares) == count
    assert max(shares.values()) / min(shares.values()) < 1.3
    release_all(balancer, held)
    assert_settled(balancer)


@every_policy
def test_the_ledger_is_right_under_every_policy(name: str) -> None:  # T17
    balancer, route = balancer_of(4, max_in_flight=10, gpu_memory=24 * GB), route_of(name)
    held = [place(balancer, route, heavy(GB, session=f"s{number}")) for number in range(30)]
    nodes = list(balancer.fleet.nodes.values())
    counts = Counter(placement.node for placement in held)
    for node in nodes:
        assert node.in_flight == counts[node]
        assert node.reserved_memory == counts[node] * GB
        assert node.reserved_seconds == pytest.approx(counts[node] * 1.0)
    release_all(balancer, held)
    assert_settled(balancer)


@every_policy
def test_switched_at_run_time_the_next_policy_finds_right_counters(name: str) -> None:  # T17
    balancer, route = balancer_of(4, max_in_flight=5), route_of(name)
    held = [place(balancer, route, chat(session=f"s{number}")) for number in range(13)]
    before = {node.name: node.in_flight for node in balancer.fleet.nodes.values()}
    route.policy = create("least-request")
    for _ in range(7):
        least = min(node.in_flight for node in balancer.fleet.nodes.values())
        placement = place(balancer, route)
        held.append(placement)
        assert placement.node.in_flight == least + 1
    assert sum(before.values()) == 13
    assert all(node.free_slots == 0 for node in balancer.fleet.nodes.values())
    waiter = Waiting()
    ticket = wait(balancer, route, waiter)
    assert balancer.cancel(ticket)
    release_all(balancer, held)
    assert_settled(balancer)


@every_policy
def test_memory_ignored_oversubscribes_the_card_as_a_naive_balancer_does(name: str) -> None:
    balancer, route = balancer_of(2, gpu_memory=24 * GB), route_of(name, enforce_memory=False)
    held = [place(balancer, route, heavy(18 * GB)) for _ in range(6)]
    assert sum(node.free_memory for node in balancer.fleet.nodes.values()) == (48 - 108) * GB
    release_all(balancer, held)
    assert_settled(balancer)


@every_policy
def test_memory_enforced_is_never_exceeded(name: str) -> None:
    balancer, route = balancer_of(4, gpu_memory=24 * GB), route_of(name)
    held = [place(balancer, route, heavy(8 * GB, session=f"s{number}")) for number in range(12)]
    assert all(node.free_memory == 0 for node in balancer.fleet.nodes.values())
    wait(balancer, route, waiter := Waiting(), heavy(18 * GB))
    for number, placement in enumerate(held):
        there = [other for other in held[number + 1 :] if other.node is placement.node]
        assert waiter.placement is None
        balancer.release(placement.lease, 1.0)
        if len(there) == 0:
            break
    assert waiter.placement is not None
    for placement in (*held, waiter.placement):
        balancer.release(placement.lease, 2.0)
    assert_settled(balancer)


@every_policy
def test_what_is_compared_is_shown(name: str) -> None:
    balancer, route = balancer_of(1), route_of(name)
    node = balancer.fleet.nodes["n0"]
    node.latency.observe(0.5, 0.0)
    node.speed = 2.0
    placement = place(balancer, route)
    expected = {
        "least-request": 1.0,
        "power-of-two": 1.0,
        "least-work": 0.5,
        "peak-ewma": 0.5,
        "least-response-time": 0.5,
    }.get(name)
    assert placement.score == expected
    if expected is None:
        assert placement.reason == f"{name} among 1"
    else:
        assert placement.reason == f"{name} {expected:.4g} among 1"
    balancer.release(placement.lease, 0.0)
