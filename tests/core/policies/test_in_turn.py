"""round-robin and weighted-round-robin: whose turn it is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core.node import Node
from steelyard.core.policies.derived import KEPT, Derived
from steelyard.core.policies.registry import create
from steelyard.core.policies.weighted_round_robin import STEPS, Schedule

from .test_every_policy import nodes_of, pick


def weighted(*weights: int) -> list[Node]:
    nodes = nodes_of(len(weights))
    for node, weight in zip(nodes, weights, strict=True):
        node.weight = weight
    return nodes


class FirstTurn(Random):
    """Starts every schedule at its first turn."""

    def randrange(self, *args: int) -> int:  # type: ignore[override]
        return 0


def nginx(weights: list[int], turns: int) -> list[int]:
    """Smooth weighted round robin as it is usually written: O(n) a turn."""
    credit = [0] * len(weights)
    sequence = []
    for _ in range(turns):
        for number, weight in enumerate(weights):
            credit[number] += weight
        leader = credit.index(max(credit))
        credit[leader] -= sum(weights)
        sequence.append(leader)
    return sequence


def names(nodes: list[Node | None]) -> str:
    return " ".join(node.name for node in nodes if node is not None)


def test_one_after_the_other_from_a_random_start() -> None:
    nodes, policy = nodes_of(3), create("round-robin")
    assert names([pick(policy, nodes, FirstTurn()) for _ in range(7)]) == "n0 n1 n2 n0 n1 n2 n0"
    assert {str(pick(create("round-robin"), nodes, Random(seed))) for seed in range(50)} == {str(n) for n in nodes}


def test_a_full_node_is_passed_over_and_the_others_stay_even() -> None:
    nodes, policy, rng = nodes_of(4), create("round-robin"), FirstTurn()
    nodes[1].free_slots = 0
    assert names([pick(policy, nodes, rng) for _ in range(6)]) == "n0 n2 n3 n0 n2 n3"
    nodes[1].free_slots = 1
    assert names([pick(policy, nodes, rng) for _ in range(5)]) == "n0 n1 n2 n3 n0"


@pytest.mark.parametrize("name", ["round-robin", "weighted-round-robin"])
def test_two_models_that_alternate_do_not_take_each_others_turns(name: str) -> None:
    nodes, policy, rng = nodes_of(4), create(name), Random(1)
    one, other = nodes[:2], nodes
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for _ in range(400):
        for list_, count in zip((one, other), counts, strict=True):
            count[names([pick(policy, list_, rng)])] += 1
    assert counts[0] == {"n0": 200, "n1": 200}
    assert counts[1] == {"n0": 100, "n1": 100, "n2": 100, "n3": 100}


@pytest.mark.parametrize("name", ["round-robin", "weighted-round-robin"])
def test_when_the_fleet_changes_with_every_request_no_node_is_favoured(name: str) -> None:
    policy, rng = create(name), Random(1)
    nodes = nodes_of(4)
    counts: Counter[str] = Counter()
    for _ in range(4000):
        counts[names([pick(policy, [*nodes, *nodes_of(1)], rng)])] += 1
    assert max(counts[f"n{number}"] for number in (1, 2, 3)) < 1.3 * min(counts[f"n{number}"] for number in (1, 2, 3))


def test_smooth_as_in_nginx() -> None:
    nodes, policy = weighted(5, 1, 1), create("weighted-round-robin")
    turns = [pick(policy, nodes, FirstTurn()) for _ in range(14)]
    assert names(turns) == "n0 n0 n1 n0 n2 n0 n0 n0 n0 n1 n0 n2 n0 n0"


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(deadline=None)
def test_the_same_sequence_as_the_algorithm_that_looks_at_every_node(weights: list[int]) -> None:
    nodes, policy, rng = weighted(*weights), create("weighted-round-robin"), FirstTurn()
    turns = 3 * sum(weights)
    assert [pick(policy, nodes, rng) for _ in range(turns)] == [nodes[n] for n in nginx(weights, turns)]


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers())
@settings(deadline=None)
def test_in_every_round_each_node_has_as_many_turns_as_it_weighs(weights: list[int], seed: int) -> None:
    nodes, policy, rng = weighted(*weights), create("weighted-round-robin"), Random(seed)
    counts = Counter(pick(policy, nodes, rng) for _ in range(2 * sum(weights)))
    assert counts == {node: 2 * node.weight for node in nodes}


def test_a_new_schedule_may_begin_at_any_of_its_turns() -> None:
    nodes = weighted(8, 1, 1)
    first = Counter(names([Schedule(nodes, Random(seed)).turn()]) for seed in range(1000))
    assert first["n1"] > 50
    assert first["n2"] > 50
    assert first["n0"] > 700


def test_without_a_full_node_the_others_keep_their_proportion_and_it_saves_up_nothing() -> None:
    nodes, policy, rng = weighted(4, 2, 1), create("weighted-round-robin"), Random(1)
    nodes[0].free_slots = 0
    counts = Counter(names([pick(policy, nodes, rng)]) for _ in range(3000))
    assert counts == {"n1": 2000, "n2": 1000}
    nodes[0].free_slots = 1
    counts = Counter(names([pick(policy, nodes, rng)]) for _ in range(7))
    assert counts == {"n0": 4, "n1": 2, "n2": 1}


def test_behind_a_full_node_of_enormous_weight_the_others_are_drawn_by_weight() -> None:
    nodes, policy, rng = weighted(1000 * STEPS, 3, 1), create("weighted-round-robin"), Random(1)
    nodes[0].free_slots = 0
    counts = Counter(names([pick(policy, nodes, rng)]) for _ in range(2000))
    assert counts["n0"] == 0
    assert 2.4 < counts["n1"] / counts["n2"] < 3.7


def test_a_changed_weight_counts_although_the_nodes_are_the_same() -> None:
    nodes, policy, rng = weighted(1, 1), create("weighted-round-robin"), Random(1)
    assert Counter(names([pick(policy, list(nodes), rng)]) for _ in range(10)) == {"n0": 5, "n1": 5}
    nodes[0].weight = 4
    assert Counter(names([pick(policy, list(nodes), rng)]) for _ in range(10)) == {"n0": 8, "n1": 2}


def test_what_is_remembered_of_lists_is_bounded() -> None:
    nodes = nodes_of(20)
    made = []

    def derive(candidates: object, rng: Random) -> int:
        made.append(candidates)
        return len(made)

    derived = Derived(derive)
    rng = Random(1)
    lists = [[nodes[a], nodes[b]] for a in range(20) for b in range(20)]
    assert len(lists) > 3 * KEPT
    for list_ in lists:
        derived.of(list_, rng)
    assert len(derived) == KEPT
    assert len(made) == len(lists)
    assert derived.of(lists[-1], rng) == len(lists), "known by its identity"
    assert derived.of(list(lists[-1]), rng) == len(lists), "known by its content"
    assert derived.of(lists[0], rng) == len(lists) + 1, "forgotten"


def test_a_thousand_fresh_equal_lists_are_one() -> None:
    nodes = nodes_of(3)
    derived = Derived(lambda candidates, rng: object())
    assert len({derived.of(list(nodes), Random(1)) for _ in range(1000)}) == 1
    assert len(derived) == 1
