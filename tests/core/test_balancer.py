"""Admission: placed, in the line, or refused; and what comes back."""

from __future__ import annotations

from random import Random

import pytest

from steelyard.core.balancer import DECISIONS, SAMPLE, SCANNED, Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event, NodeSpec
from steelyard.core.placement import Placement
from steelyard.core.queue import Ticket
from steelyard.core.refusal import Refusal
from steelyard.core.route import RetryRule

from .building import (
    GB,
    MODEL,
    Waiting,
    add_ready,
    assert_settled,
    balancer_of,
    chat,
    heavy,
    place,
    refuse,
    release_all,
    route_of,
    table,
    wait,
)
from .policies.test_every_policy import POLICIES

# -- placed


def test_choosing_and_reserving_is_one_call() -> None:
    balancer, route = balancer_of(1, max_in_flight=4), route_of()
    work = chat(prompt_tokens=100)
    placement = place(balancer, route, work, now=7.0)
    node = balancer.fleet.nodes["n0"]
    assert (placement.node, placement.route, placement.policy, placement.at) == (node, route, "least-work", 7.0)
    assert (placement.considered, placement.queued) == (1, 0.0)
    assert (node.in_flight, node.reserved_seconds) == (1, work.footprint.seconds)  # type: ignore[union-attr]
    assert balancer.release(placement.lease, 8.0)
    assert not balancer.release(placement.lease, 8.0)
    assert_settled(balancer)


def test_the_footprint_comes_from_the_route_unless_the_work_brings_one() -> None:
    balancer, route = balancer_of(1, gpu_memory=24 * GB), route_of(footprints=table(8 * GB))
    first, second = place(balancer, route), place(balancer, route, heavy(GB))
    assert (first.lease.footprint.memory, second.lease.footprint.memory) == (8 * GB, GB)
    release_all(balancer, [first, second])
    assert_settled(balancer)


def test_an_alias_is_the_name_that_nodes_have_and_what_was_asked_is_kept() -> None:
    fleet = Fleet({"gpt-4o": MODEL})
    add_ready(fleet, "n0")
    balancer = Balancer(fleet, Random(1))
    work = chat("gpt-4o")
    placement = place(balancer, route_of(), work)
    assert (work.model, work.asked_model) == (MODEL, "gpt-4o")
    balancer.release(placement.lease, 0.0)


def test_versions_are_never_mixed() -> None:
    fleet = Fleet()
    for number in range(8):
        add_ready(fleet, f"n{number}", version="v1" if number % 2 else "v2", max_in_flight=3)
    balancer, route = Balancer(fleet, Random(1)), route_of()
    held, waiting = [], []
    for number in range(40):
        version = "v1" if number % 3 else "v2"
        waiter = Waiting()
        outcome = balancer.admit(chat(version=version), route, 0.0, waiter)
        if isinstance(outcome, Placement):
            held.append((version, outcome))
        else:
            waiting.append((version, waiter))
    while held:
        version, placement = held.pop(0)
        assert placement.node.version == version
        balancer.release(placement.lease, 1.0)
        for version, waiter in [pair for pair in waiting if pair[1].placement is not None]:
            assert waiter.placement is not None
            held.append((version, waiter.placement))
            waiting.remove((version, waiter))
    assert waiting == []
    assert_settled(balancer)


def test_among_more_than_64_candidates_a_policy_that_compares_is_given_a_sample() -> None:
    balancer = balancer_of(SCANNED + 1)
    assert place(balancer, route_of("least-work")).considered == SAMPLE
    assert place(balancer, route_of("round-robin")).considered == SCANNED + 1
    assert place(balancer_of(SCANNED), route_of("least-work")).considered == SCANNED


def test_nodes_that_were_tried_already_are_excluded() -> None:
    balancer, route = balancer_of(3), route_of()
    nodes = list(balancer.fleet.nodes.values())
    placement = place(balancer, route, excluded=nodes[:2])
    assert placement.node is nodes[2]
    refusal = refuse(balancer, route, chat(), excluded=nodes)
    assert (refusal.code, refusal.status) == ("no_node", 503)
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_a_retry_neither_waits_behind_the_line_nor_joins_it() -> None:
    balancer, route = balancer_of(2, max_in_flight=1), route_of()
    first, second = place(balancer, route), place(balancer, route)
    ticket = wait(balancer, route, Waiting())
    refusal = refuse(balancer, route, chat(), excluded=[first.node])
    assert refusal.code == "no_node"
    assert balancer.queue.length == 1
    balancer.cancel(ticket)
    release_all(balancer, [first, second])
    assert_settled(balancer)


def test_a_retry_that_may_wait_lines_up_when_the_others_are_only_full() -> None:
    balancer, route = balancer_of(2, max_in_flight=1), route_of()
    first, second = place(balancer, route), place(balancer, route)
    older, retry = Waiting(), Waiting()
    wait(balancer, route, older)
    outcome = balancer.admit(chat(), route, 1.0, retry, [first.node])
    assert isinstance(outcome, Ticket)
    assert balancer.queue.length == 2
    balancer.fleet.apply(first.node, Event.FAILED, 1.0)
    balancer.release(first.lease, 1.0)
    balancer.release(second.lease, 2.0)
    assert older.placement is not None
    assert retry.placement is None, "it came later"
    balancer.release(older.placement.lease, 3.0)
    assert retry.placement is not None
    assert (retry.placement.node, retry.placement.queued) == (second.node, 2.0)
    balancer.release(retry.placement.lease, 4.0)
    assert_settled(balancer)


def test_a_retry_that_waits_is_never_placed_where_it_was_tried() -> None:
    # The first node answers nobody who connects, which does not take it out: others may still be sent there.
    balancer, route = balancer_of(2, max_in_flight=1), route_of()
    first, second = place(balancer, route), place(balancer, route)
    retry, younger = Waiting(), Waiting()
    assert isinstance(balancer.admit(chat(), route, 1.0, retry, [first.node]), Ticket)
    wait(balancer, route, younger)
    balancer.release(first.lease, 2.0)
    assert retry.placement is None
    assert younger.placement is not None, "who was tried nowhere does not wait behind the retry"
    assert younger.placement.node is first.node
    balancer.release(second.lease, 3.0)
    assert retry.placement is not None
    assert retry.placement.node is second.node
    release_all(balancer, [younger.placement, retry.placement])
    assert_settled(balancer)


def test_a_retry_does_not_wait_where_nothing_else_could_ever_take_it() -> None:
    balancer, route = balancer_of(2, gpu_memory=24 * GB), route_of()
    tried = list(balancer.fleet.nodes.values())
    add_ready(balancer.fleet, "small", gpu_memory=8 * GB)
    for excluded, memory in ((tried, 16 * GB), (list(balancer.fleet.nodes.values()), GB)):
        refusal = refuse(balancer, route, heavy(memory), waiter=Waiting(), excluded=excluded)
        assert (refusal.code, refusal.message) == ("no_node", "no other node can take the request")
    placement = place(balancer, route_of(enforce_memory=False), heavy(16 * GB), waiter=Waiting(), excluded=tried)
    assert placement.node.name == "small"
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_a_retry_that_may_wait_finds_the_line_full() -> None:
    balancer, route = balancer_of(2, max_in_flight=1), route_of(size=1)
    held = [place(balancer, route), place(balancer, route)]
    ticket = wait(balancer, route, Waiting())
    assert refuse(balancer, route, chat(), waiter=Waiting(), excluded=[held[0].node]).code == "queue_full"
    balancer.cancel(ticket)
    release_all(balancer, held)
    assert_settled(balancer)


# -- weight 0 (T19): no new traffic, under every policy


@pytest.mark.parametrize("name", POLICIES)
def test_weight_0_beside_others_gets_nothing(name: str) -> None:
    balancer, route = balancer_of(2), route_of(name)
    zero = add_ready(balancer.fleet, "zero", weight=0)
    held = [place(balancer, route, chat(session=f"s{n}")) for n in range(100)]
    assert zero.served == 0
    release_all(balancer, held)
    assert_settled(balancer)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("count", [1, 3], ids=["alone", "all of them"])
def test_weight_0_everywhere_is_503_and_neither_all_traffic_nor_a_crash(name: str, count: int) -> None:
    balancer, route = balancer_of(count, weight=0), route_of(name)
    refusal = refuse(balancer, route, chat(), waiter=Waiting())
    assert (refusal.code, refusal.status) == ("no_node", 503)
    assert "weight 0" in refusal.message
    assert_settled(balancer)


@pytest.mark.parametrize("name", POLICIES)
def test_weight_0_is_not_taken_for_unset(name: str) -> None:
    balancer, route = balancer_of(1), route_of(name)
    placement = place(balancer, route)
    node = placement.node
    spec = NodeSpec("n0", node.spec.url, engine="vllm", models=node.models, weight=0)
    balancer.fleet.reconfigure(node, spec)
    assert node.weight == 0
    assert refuse(balancer, route, chat()).code == "no_node"
    assert node.in_flight == 1, "what runs there runs on"
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


# -- refused at once


def test_a_fleet_without_nodes() -> None:
    refusal = refuse(Balancer(Fleet(), Random(1)), route_of(), chat())
    assert (refusal.status, refusal.message) == (503, "no node is configured")


def test_nobody_speaks_the_dialect() -> None:
    work = chat()
    work.dialect = "triton"
    refusal = refuse(balancer_of(1), route_of(), work)
    assert (refusal.code, refusal.message) == ("no_node", "no node speaks triton (engines here: vllm)")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("lama", "the model 'lama' does not exist; did you mean 'llama'?"),
        ("gpt-4", "the model 'gpt-4' does not exist; did you mean 'gpt-4o'?"),
        ("xyz", "the model 'xyz' does not exist; there are: gpt-4o, llama"),
        ("xyz:legal", "the model 'xyz:legal' does not exist; there are: gpt-4o, llama"),
    ],
)
def test_an_unknown_model_is_404_at_once_and_waits_nowhere(model: str, words: str) -> None:  # T26
    balancer = balancer_of(1, max_in_flight=1)
    balancer.fleet.aliases["gpt-4o"] = MODEL
    route = route_of()
    for full in (False, True):
        refusal = refuse(balancer, route, chat(model), waiter=Waiting())
        assert (refusal.code, refusal.status, refusal.message) == ("unknown_model", 404, words)
        assert refusal.retry_after is None
        assert balancer.queue.length == 0
        if not full:
            placement = place(balancer, route)
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_where_no_model_is_known_none_is_listed() -> None:
    refusal = refuse(balancer_of(1, models=frozenset()), route_of(), chat("llama"))
    assert refusal.message == "the model 'llama' does not exist"


def test_an_unknown_version_says_which_exist() -> None:
    balancer = balancer_of(1, version="v1")
    refusal = refuse(balancer, route_of(), chat(version="v9"))
    assert (refusal.status, refusal.message) == (404, "version 'v9' does not exist; there are: v1")
    refusal = refuse(balancer_of(1), route_of(), chat(version="v9"))
    assert refusal.message == "version 'v9' does not exist; there are: none"


@pytest.mark.parametrize("model", [MODEL, f"{MODEL}:legal"])
def test_the_model_of_a_node_that_cannot_serve_now_is_503_and_not_404(model: str) -> None:  # T24
    balancer, route = balancer_of(2), route_of()
    fleet = balancer.fleet
    fleet.apply(fleet.nodes["n0"], Event.FAILED, 0.0)
    fleet.apply(fleet.nodes["n1"], Event.DRAIN, 0.0)
    fleet.add(NodeSpec("joining", "http://j", engine="vllm", models=frozenset({MODEL})))
    refusal = refuse(balancer, route, chat(model), waiter=Waiting())
    assert (refusal.code, refusal.status, refusal.retry_after) == ("no_node", 503, 5.0)
    assert refusal.message == "no node can serve now (3 down/draining/joining)"
    assert_settled(balancer)


def test_no_request_before_a_node_is_ready() -> None:  # T24
    fleet = Fleet()
    node = fleet.add(NodeSpec("n", "http://n", engine="vllm", models=frozenset({MODEL})))
    balancer, route = Balancer(fleet, Random(1)), route_of()
    for event in (Event.FAILED, Event.REACHED, Event.REACHED, Event.FAILED, Event.REACHED):
        fleet.apply(node, event, 0.0)
        assert refuse(balancer, route, chat()).code == "no_node"
    fleet.apply(node, Event.WARMED, 1.0)
    placement = place(balancer, route)
    assert (placement.node, node.served) == (node, 1)
    balancer.release(placement.lease, 1.0)
    assert_settled(balancer)


def test_what_fits_no_node_is_refused_with_the_need_and_the_largest() -> None:
    balancer, route = balancer_of(2, gpu_memory=24 * GB), route_of()
    add_ready(balancer.fleet, "small", gpu_memory=8 * GB)
    refusal = refuse(balancer, route, heavy(25 * GB), waiter=Waiting())
    assert (refusal.code, refusal.status, refusal.retry_after) == ("does_not_fit", 422, None)
    assert str(25 * GB) in refusal.message
    assert str(24 * GB) in refusal.message
    placement = place(balancer, route, heavy(24 * GB))
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


@pytest.mark.parametrize("how", ["down", "draining", "weight 0"])
def test_what_only_an_absent_node_can_hold_is_503_and_holds_up_nobody(how: str) -> None:
    balancer, route = balancer_of(1, gpu_memory=8 * GB, max_in_flight=1), route_of()
    fleet = balancer.fleet
    large = add_ready(fleet, "large", gpu_memory=24 * GB, weight=0 if how == "weight 0" else 1)
    if how != "weight 0":
        fleet.apply(large, Event.FAILED if how == "down" else Event.DRAIN, 0.0)
    refusal = refuse(balancer, route, heavy(16 * GB), waiter=Waiting())
    assert (refusal.code, refusal.status, refusal.retry_after) == ("no_node", 503, 5.0)
    needs = f"the request needs {16 * GB} bytes of GPU memory"
    assert refusal.message == f"{needs}; no node with so much can serve now (1 {how})"
    placement = place(balancer, route, heavy(GB))
    found = balancer.explain(heavy(16 * GB), route, 0.0)
    assert (found.outcome, found.reason) == ("no_node", refusal.message)
    refusal = refuse(balancer, route, heavy(25 * GB), waiter=Waiting())
    assert (refusal.status, refusal.message) == (422, needs.replace("16", "25") + f"; the largest node has {24 * GB}")
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_a_large_node_of_another_version_or_model_holds_nothing_for_this_one() -> None:
    balancer, route = balancer_of(1, gpu_memory=8 * GB, version="v1"), route_of()
    for name, spec in (("v2", {"version": "v2"}), ("gemma", {"version": "v1", "models": frozenset({"gemma"})})):
        node = add_ready(balancer.fleet, name, gpu_memory=24 * GB, **spec)
        balancer.fleet.apply(node, Event.FAILED, 0.0)
    assert refuse(balancer, route, heavy(16 * GB, version="v1")).code == "does_not_fit"
    assert refuse(balancer, route, heavy(16 * GB)).code == "no_node", "any version will do: v2 may come back"


def test_what_is_resident_on_a_card_is_not_free_for_anybody() -> None:
    balancer, route = balancer_of(1, gpu_memory=24 * GB), route_of()
    node = balancer.fleet.nodes["n0"]
    node.resident_memory = 4 * GB
    node.free_memory -= 4 * GB
    assert str(20 * GB) in refuse(balancer, route, heavy(21 * GB)).message
    placement = place(balancer, route, heavy(20 * GB))
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_where_memory_is_ignored_nothing_is_too_large() -> None:
    balancer, route = balancer_of(1, gpu_memory=24 * GB, max_in_flight=2), route_of(enforce_memory=False)
    held = [place(balancer, route, heavy(30 * GB)), place(balancer, route, heavy(30 * GB))]
    ticket = wait(balancer, route, Waiting(), heavy(30 * GB))
    balancer.cancel(ticket)
    release_all(balancer, held)
    assert_settled(balancer)


def test_who_does_not_wait_is_told_when_to_come_again() -> None:
    balancer, route = balancer_of(2, max_in_flight=1), route_of()
    held = [place(balancer, route, heavy(0, seconds=8.5)), place(balancer, route, heavy(0, seconds=3.5))]
    refusal = refuse(balancer, route, chat())
    assert (refusal.code, refusal.status, refusal.retry_after) == ("overloaded", 503, 4.0)
    release_all(balancer, held)


@pytest.mark.parametrize(("seconds", "retry_after"), [(0.01, 1.0), (1000.0, 60.0)])
def test_the_advice_lies_between_a_second_and_a_minute(seconds: float, retry_after: float) -> None:
    balancer, route = balancer_of(1, max_in_flight=1), route_of()
    placement = place(balancer, route, heavy(0, seconds=seconds))
    assert refuse(balancer, route, chat()).retry_after == retry_after
    balancer.release(placement.lease, 0.0)


def test_a_hundred_rejected_requests_leave_no_trace_in_any_counter() -> None:  # T07
    balancer, route = balancer_of(1, max_in_flight=1), route_of(size=3)
    placement = place(balancer, route)
    tickets = [wait(balancer, route, Waiting()) for _ in range(3)]
    for _ in range(100):
        refusal = refuse(balancer, route, chat(), waiter=Waiting())
        assert (refusal.code, refusal.status) == ("queue_full", 429)
        assert "3 requests wait already" in refusal.message
        assert refusal.retry_after is not None
    assert (balancer.queue.length, balancer.queue.of_route("route"), balancer.ledger.live) == (3, 3, 1)
    for ticket in tickets:
        assert balancer.cancel(ticket)
    balancer.release(placement.lease, 1.0)
    assert_settled(balancer)


# -- retries


def test_the_budget_bounds_the_retries_that_run_at_the_same_time() -> None:
    balancer, route = balancer_of(1), route_of(retry=RetryRule(budget=0.2))
    assert [balancer.may_retry(route) for _ in range(5)] == [True, True, True, False, False], "three always may"
    held = [place(balancer, route) for _ in range(25)]
    assert [balancer.may_retry(route) for _ in range(3)] == [True, True, False], "a fifth of 25"
    for _ in range(5):
        balancer.retried()
    release_all(balancer, held)
    assert_settled(balancer)


# -- decisions


def test_the_latest_decisions_are_remembered_placements_and_refusals() -> None:
    balancer, route = balancer_of(1, max_in_flight=1), route_of()
    work, unknown = chat(), chat("gemma")
    placement = place(balancer, route, work, now=1.0)
    refusal = refuse(balancer, route, unknown, now=2.0)
    waiter, waiting = Waiting(), chat()
    wait(balancer, route, waiter, waiting, now=3.0)
    assert list(balancer.decisions) == [(1.0, work, placement), (2.0, unknown, refusal)]
    balancer.release(placement.lease, 4.5)
    at, decided, second = balancer.decisions[-1]
    assert (at, decided, second) == (4.5, waiting, waiter.placement)
    assert isinstance(second, Placement)
    assert second.queued == 1.5
    balancer.release(second.lease, 5.0)


def test_the_reason_is_written_down_once() -> None:
    balancer = balancer_of(2)
    for policy, reason in (("least-work", "least-work 1 among 2"), ("round-robin", "round-robin among 2")):
        placement = place(balancer, route_of(policy))
        assert placement.reason == reason
        assert placement.reason is placement.reason
        balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


def test_no_more_than_a_thousand() -> None:
    balancer, route = balancer_of(1), route_of()
    for number in range(DECISIONS + 10):
        placement = place(balancer, route, now=float(number))
        balancer.release(placement.lease, float(number))
    assert len(balancer.decisions) == DECISIONS
    assert balancer.decisions[0][0] == 10.0


# -- anything, in any order


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_after_any_storm_nothing_is_left(name: str, seed: int) -> None:
    """Requests of all sizes, cancellations, orphans, nodes that come, drain, fail and go: then all of it ends."""
    rng = Random(seed)
    balancer = balancer_of(4, seed, max_in_flight=3, gpu_memory=24 * GB)
    fleet, route = balancer.fleet, route_of(name, size=20, wait=2.0)
    held: list[Placement] = []
    tickets: list[tuple[Ticket, Waiting]] = []
    ends: dict[str, int] = {"placed": 0, "refused": 0, "timed out": 0, "cancelled": 0}
    arrivals = 0
    now = 0.0

    def collect() -> None:
        for pair in tickets[:]:
            waiter = pair[1]
            if waiter.placement is not None:
                held.append(waiter.placement)
                ends["placed"] += 1
                tickets.remove(pair)
            elif waiter.refusal is not None:
                assert waiter.refusal.code == "queue_timeout"
                ends["timed out"] += 1
                tickets.remove(pair)

    for step in range(1200):
        now += rng.expovariate(3.0)
        what = rng.random()
        if what < 0.5:
            arrivals += 1
            work = heavy(rng.choice([1, 8, 18, 30]) * GB, rng.random(), session=f"s{rng.randrange(9)}")
            waiter = Waiting()
            outcome = balancer.admit(work, route, now, waiter)
            if isinstance(outcome, Placement):
                held.append(outcome)
                ends["placed"] += 1
            elif isinstance(outcome, Ticket):
                tickets.append((outcome, waiter))
            else:
                ends["refused"] += 1
        elif what < 0.76 and held:
            placement = held.pop(rng.randrange(len(held)))
            placement.node.latency.observe(now - placement.at, now)
            balancer.release(placement.lease, now)
        elif what < 0.85 and held:
            balancer.ledger.orphan(held.pop(rng.randrange(len(held))).lease, now)
        elif what < 0.9 and tickets:
            ticket, _ = tickets.pop(rng.randrange(len(tickets)))
            assert balancer.cancel(ticket)
            assert not balancer.cancel(ticket)
            ends["cancelled"] += 1
        elif what < 0.92 and len(fleet.nodes) < 6:
            add_ready(fleet, f"new-{step}", now, max_in_flight=3, gpu_memory=24 * GB)
        elif what < 0.94 and len(fleet.nodes) > 2:
            node = rng.choice(list(fleet.nodes.values()))
            balancer.ledger.reset(node)
            fleet.apply(node, Event.WITHDRAWN, now)
        elif what < 0.96:
            node = rng.choice(list(fleet.nodes.values()))
            fleet.apply(node, Event.FAILED, now)
            balancer.ledger.void(node)
            fleet.apply(node, Event.RECOVERED, now)
        else:
            balancer.tick(now)
        collect()
        for node in fleet.nodes.values():
            assert 0 <= node.in_flight <= 3
            assert 0 <= node.reserved_memory <= 24 * GB
        assert balancer.queue.length == len(tickets)
    while held:
        balancer.release(held.pop().lease, now)
        collect()
    balancer.tick(now + 1000.0)
    collect()
    while held:
        balancer.release(held.pop().lease, now)
        collect()
    assert tickets == []
    assert sum(ends.values()) == arrivals, "each request ends in exactly one way"
    assert min(ends.values()) > 0, "the storm was one"
    assert_settled(balancer)


def test_a_refusal_has_one_entry_in_the_decisions_and_no_lease() -> None:
    balancer = balancer_of(1)
    outcome = balancer.admit(chat("gemma"), route_of(), 0.0)
    assert isinstance(outcome, Refusal)
    assert len(balancer.decisions) == 1
    assert_settled(balancer)
