"""Explanations say what admission would do, and reserve nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event, NodeSpec
from steelyard.core.placement import Placement
from steelyard.core.queue import Ticket
from steelyard.core.work import Footprint

from .building import GB, MODEL, Waiting, add_ready, assert_settled, balancer_of, chat, heavy, place, route_of, wait
from .policies.test_every_policy import POLICIES


def test_the_best_node_comes_first_and_every_other_has_its_reason() -> None:
    fleet = Fleet({"gpt-4o": MODEL})
    add_ready(fleet, "busy").reserved_seconds = 9.0
    add_ready(fleet, "idle")
    add_ready(fleet, "images", engine="sdwebui", models=frozenset({"sd-1.5"}))
    fleet.add(NodeSpec("joining", "http://j", engine="vllm", models=frozenset({MODEL})))
    balancer = Balancer(fleet, Random(1))
    found = balancer.explain(chat("gpt-4o"), route_of(), 0.0)
    assert (found.outcome, found.node, found.reason) == ("placed", fleet.nodes["idle"], "least-work among 2")
    assert [(option.node.name, option.objection, option.score) for option in found.options] == [
        ("idle", None, 1.0),
        ("busy", None, 10.0),
        ("images", "does not serve model llama", None),
        ("joining", "state joining", None),
    ]
    assert balancer.ledger.live == 0
    assert len(balancer.decisions) == 0


def test_a_policy_that_does_not_compare_names_no_node() -> None:
    found = balancer_of(2).explain(chat(), route_of("round-robin"), 0.0)
    assert (found.outcome, found.node, found.reason) == ("placed", None, "round-robin among 2")


def test_nobody_can_serve() -> None:
    balancer = balancer_of(1)
    found = balancer.explain(chat("gemma"), route_of(), 0.0)
    assert (found.outcome, found.node) == ("unknown_model", None)
    assert "gemma" in found.reason
    assert found.options[0].objection == "does not serve model gemma"


def test_an_adapter_is_explained_by_its_base_or_by_those_that_have_it() -> None:
    fleet = Fleet()
    add_ready(fleet, "base")
    balancer = Balancer(fleet, Random(1))
    found = balancer.explain(chat("llama:legal"), route_of(), 0.0)
    assert (found.outcome, found.node) == ("placed", fleet.nodes["base"])
    add_ready(fleet, "own", models=frozenset({"llama:legal"}))
    found = balancer.explain(chat("llama:legal"), route_of(), 0.0)
    assert found.node is fleet.nodes["own"]
    assert found.options[1].objection == "does not serve model llama:legal"


def test_too_large_full_and_full_line() -> None:
    balancer, route = balancer_of(1, gpu_memory=24 * GB), route_of(size=1)
    found = balancer.explain(heavy(25 * GB), route, 0.0)
    assert found.outcome == "does_not_fit"
    assert str(25 * GB) in found.reason
    placement = place(balancer, route, heavy(16 * GB))
    found = balancer.explain(heavy(18 * GB), route, 0.0)
    assert (found.outcome, found.reason) == ("queued", "every node is full")
    assert found.options[0].objection == f"needs {18 * GB} bytes, {8 * GB} are free"
    waiter = Waiting()
    wait(balancer, route_of(size=2), waiter, heavy(18 * GB))
    found = balancer.explain(heavy(GB), route_of(size=2), 0.0)
    assert (found.outcome, found.reason) == ("queued", "others wait already")
    found = balancer.explain(heavy(GB), route, 0.0)
    assert (found.outcome, found.reason) == ("queue_full", "every node is full and 1 requests wait already")
    balancer.release(placement.lease, 1.0)
    assert waiter.placement is not None
    balancer.release(waiter.placement.lease, 1.0)
    assert_settled(balancer)


NODE = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(["vllm", "sdwebui", "triton", "generic"]),
        "models": st.sampled_from([None, frozenset({"llama"}), frozenset({"llama", "gemma"}), frozenset({"llama:x"})]),
        "version": st.sampled_from([None, "v1", "v2"]),
        "weight": st.sampled_from([0, 1, 3]),
        "max_in_flight": st.sampled_from([None, 1, 2]),
        "gpu_memory": st.sampled_from([None, 8, 24]),
        "speed": st.sampled_from([1.0, 2.0]),
    }
)
WORK = st.tuples(
    st.sampled_from([None, "llama", "gemma", "llama:x", "llama:y", "alias", "unknown"]),
    st.sampled_from([None, None, "v1", "v3"]),
    st.sampled_from([0, 4, 18, 30]),
)


@pytest.mark.parametrize("name", POLICIES)
@given(
    specs=st.lists(NODE, max_size=5),
    failing=st.sets(st.integers(0, 4)),
    before=st.lists(WORK, max_size=12),
    asked=WORK,
    enforce=st.booleans(),
    size=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_admission_does_what_was_explained(
    name: str,
    specs: list[dict[str, Any]],
    failing: set[int],
    before: list[tuple[str | None, str | None, int]],
    asked: tuple[str | None, str | None, int],
    enforce: bool,
    size: int,
) -> None:
    fleet = Fleet({"alias": "llama"})
    for number, spec in enumerate(specs):
        node = add_ready(fleet, f"n{number}", **spec)
        if number in failing:
            fleet.apply(node, Event.FAILED, 0.0)
    balancer = Balancer(fleet, Random(1))
    route = route_of(name, size=size, enforce_memory=enforce)
    held: list[Placement] = []
    for number, (model, version, memory) in enumerate([*before, asked]):
        work = chat(model, version=version)
        work.footprint = Footprint(memory=memory)
        found = balancer.explain(work, route, 0.0)
        serving = fleet.candidates(work.dialect, work.model, work.version)
        assert {o.node.name for o in found.options if o.objection is None} <= {node.name for node in serving}
        outcome = balancer.admit(work, route, float(number), Waiting())
        if isinstance(outcome, Placement):
            assert found.outcome == "placed"
            free = {option.node: option.score for option in found.options if option.objection is None}
            assert outcome.node in free
            assert outcome.score == free[outcome.node]
            if name.startswith("least-"):
                assert found.node is not None
                assert outcome.score == free[found.node], "as good as the best"
            held.append(outcome)
        elif isinstance(outcome, Ticket):
            assert found.outcome == "queued"
        else:
            assert (found.outcome, found.node) == (outcome.code, None)
    for head in iter(lambda: balancer.queue.heads()[:1], []):
        balancer.cancel(head[0])
    for placement in held:
        balancer.release(placement.lease, 99.0)
    assert_settled(balancer)
