"""The lifecycle of a node, state by state and event by event; and what a changed spec does to a node at work."""

from __future__ import annotations

import pytest

from steelyard.core.ledger import Ledger
from steelyard.core.node import UNLIMITED, Event, ImpossibleTransition, Node, NodeSpec, State
from steelyard.core.work import Footprint, Work

# Rows: the state; columns: the event; "." cannot happen.
LIFECYCLE = """
          reached   warmed    failed    recovered drain     undrain   emptied   withdrawn
joining   warming   .         joining   .         draining  .         .         gone
warming   warming   ready     joining   .         draining  .         .         gone
ready     ready     ready     down      ready     draining  ready     .         gone
down      .         .         down      ready     draining  down      .         gone
draining  draining  draining  draining  draining  draining  joining   gone      gone
gone      .         .         .         .         .         .         .         .
"""


def cells() -> list[tuple[State, Event, State | None]]:
    header, *rows = [line.split() for line in LIFECYCLE.strip().splitlines()]
    return [
        (State(state), Event(event), None if cell == "." else State(cell))
        for state, *row in rows
        for event, cell in zip(header, row, strict=True)
    ]


def test_the_table_above_names_every_pair_of_state_and_event() -> None:
    assert {(state, event) for state, event, _ in cells()} == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event", "following"), cells())
def test_lifecycle(state: State, event: Event, following: State | None) -> None:
    node = Node(NodeSpec("gpu-1", "http://gpu-1"))
    node.state = state
    if following is None:
        with pytest.raises(ImpossibleTransition, match=f"gpu-1 is {state}: {event} cannot happen"):
            node.apply(event)
        assert node.state is state
    else:
        assert node.apply(event) is (following is not state)
        assert node.state is following


def test_a_new_node_joins_and_has_no_limits_unless_they_are_given() -> None:
    node = Node(NodeSpec("gpu-1", "http://gpu-1"))
    assert node.state is State.JOINING
    assert node.free_slots == node.free_memory == UNLIMITED
    limited = Node(NodeSpec("gpu-2", "http://gpu-2", max_in_flight=4, gpu_memory=24))
    assert (limited.free_slots, limited.free_memory) == (4, 24)
    assert repr(limited) == "<Node gpu-2 joining in_flight=0>"


def test_an_api_key_is_not_shown() -> None:
    assert "hush" not in repr(NodeSpec("cloud", "http://cloud", api_key="hush"))


@pytest.mark.parametrize(
    ("limit", "free"), [(10, 7), (3, 0), (2, -1), (None, UNLIMITED - 3)], ids=["more", "just", "less", "none"]
)
def test_a_changed_limit_counts_what_is_in_flight(limit: int | None, free: int) -> None:
    node = Node(NodeSpec("gpu-1", "http://gpu-1", max_in_flight=4))
    ledger = Ledger()
    leases = [ledger.reserve(node, Work(), Footprint(), 0.0) for _ in range(3)]
    node.reconfigure(NodeSpec("gpu-1", "http://gpu-1", max_in_flight=limit))
    assert node.free_slots == free
    if free <= 0:
        assert ledger.reserve(node, Work(), Footprint(), 0.0) is None
    for lease in leases:
        assert lease is not None
        ledger.release(lease)
    assert node.free_slots == node.max_in_flight


@pytest.mark.parametrize(("capacity", "free"), [(40, 22), (10, -8), (None, UNLIMITED - 18)])
def test_a_changed_card_counts_what_is_reserved(capacity: int | None, free: int) -> None:
    node = Node(NodeSpec("gpu-1", "http://gpu-1", gpu_memory=24))
    ledger = Ledger()
    lease = ledger.reserve(node, Work(), Footprint(memory=18), 0.0)
    assert lease is not None
    node.reconfigure(NodeSpec("gpu-1", "http://gpu-1", gpu_memory=capacity))
    assert node.free_memory == free
    ledger.release(lease)
    assert node.free_memory == node.memory_capacity


def test_a_changed_spec_takes_over_and_what_was_learned_stays_unless_it_is_told_anew() -> None:
    node = Node(NodeSpec("gpu-1", "http://gpu-1"))
    node.engine, node.models = "vllm", frozenset({"learned"})
    node.reconfigure(NodeSpec("gpu-1", "http://gpu-1", version="v2", tier="cloud", weight=3, speed=2.0))
    assert (node.version, node.tier, node.weight, node.speed) == ("v2", "cloud", 3, 2.0)
    assert (node.engine, node.models) == ("vllm", frozenset({"learned"}))
    node.reconfigure(NodeSpec("gpu-1", "http://gpu-1", engine="sglang", models=frozenset({"told"})))
    assert (node.engine, node.models) == ("sglang", frozenset({"told"}))
