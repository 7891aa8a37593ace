"""consistent-hash: sessions stay where they are, and no node gets more than 1.25 times its share."""

from __future__ import annotations

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core.node import Node, NodeSpec
from steelyard.core.policies.consistent_hash import DIGESTS, POINTS_A_DIGEST, ConsistentHash, key_point, points

from ..building import assert_settled, balancer_of, chat, place, release_all, route_of
from .test_every_policy import nodes_of, pick

SESSIONS = [f"user-{number}" for number in range(2000)]


def homes(policy: ConsistentHash, nodes: list[Node]) -> dict[str, str]:
    rng = Random(1)
    found = {}
    for session in SESSIONS:
        node = pick(policy, nodes, rng, session=session)
        assert node is not None
        found[session] = node.name
    return found


def test_a_session_stays_where_it_is() -> None:
    nodes = nodes_of(8)
    first = homes(ConsistentHash(), nodes)
    assert homes(ConsistentHash(), list(nodes)) == first
    assert homes(ConsistentHash(), nodes[::-1]) == first, "the order of the list says nothing"
    assert homes(ConsistentHash(), nodes_of(8)) == first, "nor does the process: all gateways agree"


def test_sessions_are_spread_over_all_nodes() -> None:
    counts = Counter(homes(ConsistentHash(), nodes_of(8)).values())
    assert len(counts) == 8
    assert min(counts.values()) > 0.6 * 2000 / 8
    assert max(counts.values()) < 1.5 * 2000 / 8


@pytest.mark.parametrize("kept", [True, False], ids=["ring changed step by step", "ring built anew"])
def test_when_a_node_goes_only_its_sessions_move_and_they_come_back_with_it(kept: bool) -> None:
    nodes, policy = nodes_of(8), ConsistentHash()
    before = homes(policy, nodes)
    after = homes(policy if kept else ConsistentHash(), [node for node in nodes if node.name != "n3"])
    moved = {session for session in SESSIONS if before[session] != after[session]}
    assert moved == {session for session in SESSIONS if before[session] == "n3"}
    assert len({after[session] for session in moved}) >= 5, "they go to many others"
    assert homes(policy if kept else ConsistentHash(), nodes_of(8)) == before


def test_when_a_node_comes_it_takes_its_part_and_nobody_else_moves() -> None:
    policy, nodes = ConsistentHash(), nodes_of(9)
    before, after = homes(policy, nodes[:8]), homes(policy, nodes)
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert {after[session] for session in moved} == {"n8"}
    assert 0.5 * 2000 / 9 < len(moved) < 1.6 * 2000 / 9


@given(changes=st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_a_ring_changed_step_by_step_is_the_ring_built_anew(changes: list[set[int]]) -> None:
    nodes, policy, rng = nodes_of(12), ConsistentHash(), Random(1)
    for change in changes:
        members = [nodes[number] for number in sorted(change)]
        assert policy._ring(members, rng) == sorted(point for node in members for point in points(node))


def test_a_node_that_was_replaced_under_the_same_name_is_not_mistaken_for_the_old_one() -> None:
    policy, nodes = ConsistentHash(), nodes_of(3)
    homes(policy, nodes)
    new = Node(NodeSpec("n1", "http://elsewhere"))
    picked = {pick(policy, [nodes[0], new, nodes[2]], Random(1), session=session) for session in SESSIONS}
    assert picked == {nodes[0], new, nodes[2]}


@pytest.mark.parametrize("count", [1, 3, 8, 50])
def test_no_node_ever_exceeds_its_bound(count: int) -> None:
    balancer, route, rng = balancer_of(count), route_of("consistent-hash"), Random(7)
    nodes = list(balancer.fleet.nodes.values())
    held = []
    for number in range(40 * count):
        # A tenth of the sessions make most of the requests.
        session = f"hot-{rng.randrange(3)}" if rng.random() < 0.7 else f"cold-{number}"
        total = sum(node.in_flight for node in nodes)
        placement = place(balancer, route, chat(session=session))
        held.append(placement)
        assert placement.node.in_flight <= ceil(1.25 * (total + 1) / count)
        if rng.random() < 0.3:
            balancer.release(held.pop(rng.randrange(len(held))).lease, 0.0)
    release_all(balancer, held)
    assert_settled(balancer)


def test_a_session_whose_node_has_its_share_goes_on_clockwise_and_always_to_the_same() -> None:
    nodes, policy, rng = nodes_of(8), ConsistentHash(), Random(1)
    home = pick(policy, nodes, rng, session="s")
    assert home is not None
    for node in nodes:
        node.in_flight = 4
    home.in_flight = 6  # of 34: the bound is ceil(1.25 x 35 / 8) = 6
    second = pick(policy, nodes, rng, session="s")
    assert second not in (None, home)
    assert {pick(policy, nodes, Random(seed), session="s") for seed in range(20)} == {second}
    home.in_flight = 5
    assert pick(policy, nodes, rng, session="s") is home


def test_where_all_below_the_bound_are_full_the_least_loaded_that_fits_takes_it() -> None:
    nodes, policy = nodes_of(4), ConsistentHash()
    for node, in_flight in zip(nodes, (0, 0, 10, 12), strict=True):
        node.in_flight = in_flight
    nodes[0].free_slots = nodes[1].free_slots = 0
    assert {pick(policy, nodes, Random(seed), session=f"s{seed}") for seed in range(20)} == {nodes[2]}


def test_without_a_session_the_less_loaded_of_two() -> None:
    nodes, policy, rng = nodes_of(3), ConsistentHash(), Random(1)
    for node, in_flight in zip(nodes, (0, 1, 2), strict=True):
        node.in_flight = in_flight
    counts = Counter(pick(policy, nodes, rng) for _ in range(300))
    assert counts[nodes[2]] == 0
    assert counts[nodes[0]] > counts[nodes[1]] > 50
    for node in nodes:
        node.free_slots = 0
    assert pick(policy, nodes, rng) is None


@pytest.mark.parametrize("session", ["", "\ud800", "用户", "a" * 10_000])
def test_any_text_is_a_session(session: str) -> None:
    nodes = nodes_of(3)
    assert pick(ConsistentHash(), nodes, Random(1), session=session) in nodes
    assert 0 <= key_point(session) < 1 << 64


def test_a_node_has_as_many_points_as_any_other_and_all_differ() -> None:
    for node in nodes_of(2):
        assert len({point for point, _, _ in points(node)}) == DIGESTS * POINTS_A_DIGEST
