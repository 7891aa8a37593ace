"""The line as its waiters see it: first in, first out, nobody overtakes, nobody is lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from steelyard.core.balancer import Balancer
from steelyard.core.fleet import Fleet
from steelyard.core.node import Event, NodeSpec
from steelyard.core.placement import Placement
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route

from .building import (
    GB,
    MODEL,
    Counting,
    Waiting,
    add_ready,
    assert_settled,
    balancer_of,
    chat,
    heavy,
    place,
    release_all,
    route_of,
    wait,
)


def full(slots: int = 1) -> tuple[Balancer, list[Placement]]:
    """One node, and all its slots taken."""
    balancer = balancer_of(1, max_in_flight=slots)
    return balancer, [place(balancer, route_of()) for _ in range(slots)]


def test_limit_4_and_the_fifth_waits_until_one_ends() -> None:  # T09
    balancer, held = full(4)
    waiter = Waiting()
    wait(balancer, route_of(), waiter, now=1.0)
    assert waiter.placement is None
    balancer.release(held.pop().lease, 3.5)
    assert waiter.placement is not None
    assert waiter.placement.queued == 2.5
    assert balancer.queue.length == 0
    release_all(balancer, [*held, waiter.placement])
    assert_settled(balancer)


def test_when_a_waiter_cancels_the_next_one_gets_the_slot() -> None:  # T09
    balancer, held = full(4)
    route, first, second = route_of(), Waiting(), Waiting()
    ticket = wait(balancer, route, first)
    wait(balancer, route, second)
    assert balancer.cancel(ticket)
    assert not balancer.cancel(ticket)
    balancer.release(held.pop().lease, 1.0)
    assert first.placement is None
    assert second.placement is not None
    assert not balancer.cancel(ticket)
    release_all(balancer, [*held, second.placement])
    assert_settled(balancer)


def test_a_thousand_arrivals_keep_their_order() -> None:  # T09
    balancer, held = full(4)
    route, order = route_of(), []

    def takes_its_place(number: int) -> Callable[[Placement], None]:
        def then(placement: Placement) -> None:
            order.append(number)
            held.append(placement)

        return then

    for number in range(1000):
        wait(balancer, route, Waiting(takes_its_place(number)))
    rng = Random(1)
    while held:
        assert len(held) <= 4
        balancer.release(held.pop(rng.randrange(len(held))).lease, 1.0)
    assert order == list(range(1000))
    assert_settled(balancer)


def test_a_newcomer_does_not_overtake_the_line_even_when_it_would_fit() -> None:
    balancer = balancer_of(1, gpu_memory=24 * GB)
    route = route_of()
    placement = place(balancer, route, heavy(16 * GB))
    large, small = Waiting(), Waiting()
    wait(balancer, route, large, heavy(18 * GB))
    wait(balancer, route, small, heavy(8 * GB))
    assert small.placement is None, "8 GB are free, but somebody stands before it"
    balancer.release(placement.lease, 1.0)
    assert large.placement is not None
    assert small.placement is None
    balancer.release(large.placement.lease, 2.0)
    assert small.placement is not None
    balancer.release(small.placement.lease, 3.0)
    assert_settled(balancer)


def test_one_models_full_nodes_do_not_block_anothers() -> None:
    fleet = Fleet()
    for model in ("a", "b"):
        add_ready(fleet, model, models=frozenset({model}), max_in_flight=1)
    balancer, route = Balancer(fleet, Random(1)), route_of()
    first = place(balancer, route, chat("a"))
    waiter = Waiting()
    wait(balancer, route, waiter, chat("a"))
    second = place(balancer, route, chat("b"))
    balancer.release(second.lease, 1.0)
    assert waiter.placement is None
    balancer.release(first.lease, 2.0)
    assert waiter.placement is not None
    balancer.release(waiter.placement.lease, 3.0)
    assert_settled(balancer)


def test_between_lines_for_the_same_nodes_the_older_comes_first() -> None:
    balancer = balancer_of(1, max_in_flight=1, models=frozenset({"a", "b"}))
    route = route_of()
    placement = place(balancer, route, chat("a"))
    order: list[str] = []
    waiters = []
    for number, model in enumerate("abbaabab"):
        waiter = Waiting(lambda _, name=f"{model}{number}": order.append(name))  # type: ignore[misc]
        waiters.append(waiter)
        wait(balancer, route, waiter, chat(model))
    balancer.release(placement.lease, 1.0)
    for waiter in waiters:
        assert waiter.placement is not None
        balancer.release(waiter.placement.lease, 1.0)
    assert order == ["a0", "b1", "b2", "a3", "a4", "b5", "a6", "b7"]
    assert_settled(balancer)


def test_two_lines_that_never_empty_share_their_nodes() -> None:
    balancer = balancer_of(1, max_in_flight=1, models=frozenset({"a", "b"}))
    route, served = route_of(), {"a": 0, "b": 0}
    placement = place(balancer, route, chat("a"))
    waiters: list[Waiting] = []
    for _ in range(400):
        # "a" sends three times as much as the node can do, "b" as much as it can.
        for model in "aaab":
            waiter = Waiting(lambda p, model=model: served.__setitem__(model, served[model] + 1))  # type: ignore[misc]
            if not isinstance(balancer.admit(chat(model), route, 0.0, waiter), Refusal):
                waiters.append(waiter)
        balancer.release(placement.lease, 0.0)
        placed = [waiter for waiter in waiters if waiter.placement is not None]
        assert len(placed) == 1
        waiters.remove(placed[0])
        placement = placed[0].placement  # type: ignore[assignment]
    assert served["a"] + served["b"] == 400
    assert served["b"] >= 90, "in order of arrival: about a quarter"
    for head in iter(lambda: balancer.queue.heads()[:1], []):
        balancer.cancel(head[0])
    balancer.release(placement.lease, 0.0)
    assert_settled(balancer)


# -- time


def test_nothing_free_waits_and_then_it_is_503() -> None:  # T26
    balancer, held = full()
    waiter = Waiting()
    wait(balancer, route_of(wait=30.0), waiter, now=10.0)
    balancer.tick(39.9)
    assert waiter.refusal is None
    balancer.tick(40.0)
    assert waiter.refusal is not None
    assert (waiter.refusal.code, waiter.refusal.status) == ("queue_timeout", 503)
    assert "waited 30.0 s" in waiter.refusal.message
    assert waiter.refusal.retry_after is not None
    assert balancer.decisions[-1][2] is waiter.refusal
    assert balancer.queue.length == 0
    release_all(balancer, held)
    assert_settled(balancer)


@pytest.mark.parametrize(("deadline", "until"), [(12.0, 12.0), (5.0, 10.0), (1000.0, 40.0)])
def test_nobody_waits_beyond_its_own_deadline(deadline: float, until: float) -> None:
    balancer, held = full()
    work = chat()
    work.deadline = deadline
    assert wait(balancer, route_of(wait=30.0), Waiting(), work, now=10.0).expires_at == until
    balancer.cancel(balancer.queue.heads()[0])
    release_all(balancer, held)


def test_an_orphan_that_ends_makes_room() -> None:
    balancer, (placement,) = full()
    waiter = Waiting()
    wait(balancer, route_of(), waiter)
    balancer.ledger.orphan(placement.lease, 0.0)
    balancer.tick(placement.lease.overdue_at - 0.01)
    assert waiter.placement is None
    balancer.tick(placement.lease.overdue_at)
    assert waiter.placement is not None
    balancer.release(waiter.placement.lease, 9.0)
    assert_settled(balancer)


def test_a_change_that_nobody_announced_is_found_with_time() -> None:
    balancer, held = full()
    route, waiter = route_of(), Waiting()
    wait(balancer, route, waiter)
    add_ready(balancer.fleet, "new", max_in_flight=1)
    balancer.tick(1.0)
    assert waiter.placement is not None
    assert waiter.placement.node.name == "new"
    release_all(balancer, [*held, waiter.placement])
    assert_settled(balancer)


def test_a_line_whose_nodes_are_all_gone_waits_for_others_or_for_its_end() -> None:
    balancer, held = full()
    fleet, route, patient, late = balancer.fleet, route_of(), Waiting(), Waiting()
    wait(balancer, route_of(wait=5.0), late)
    wait(balancer, route, patient)
    fleet.apply(fleet.nodes["n0"], Event.WITHDRAWN, 0.0)
    release_all(balancer, held)
    assert patient.placement is None
    balancer.tick(5.0)
    assert late.refusal is not None
    assert late.refusal.code == "queue_timeout"
    assert late.refusal.message == "waited 5.0 s and no node is left that serves llama"
    add_ready(fleet, "n1", 6.0, models=frozenset({MODEL}))
    balancer.serve_line(6.0)
    assert patient.placement is not None
    balancer.release(patient.placement.lease, 7.0)
    assert_settled(balancer)


def test_a_raised_limit_places_as_many_as_it_adds() -> None:
    balancer, held = full()
    route, waiters = route_of(), [Waiting() for _ in range(5)]
    for waiter in waiters:
        wait(balancer, route, waiter)
    node = balancer.fleet.nodes["n0"]
    balancer.fleet.reconfigure(node, NodeSpec("n0", node.spec.url, "vllm", node.models, max_in_flight=4))
    balancer.serve_line(1.0)
    assert [waiter.placement is not None for waiter in waiters] == [True, True, True, False, False]
    for placement in (*held, *[waiter.placement for waiter in waiters]):
        if placement is not None:
            balancer.release(placement.lease, 2.0)
    for waiter in waiters[3:]:
        assert waiter.placement is not None
        balancer.release(waiter.placement.lease, 3.0)
    assert_settled(balancer)


# -- many lines


def test_lines_of_made_up_names_are_not_each_tried_again_when_one_lease_ends() -> None:
    balancer = balancer_of(1, models=None, max_in_flight=1)
    policy = Counting("least-work")
    route = Route("route", policy)
    placement = place(balancer, route, chat("made-up"))
    waiters = [Waiting() for _ in range(500)]
    for number, waiter in enumerate(waiters):
        wait(balancer, route, waiter, chat(f"made-up-{number}"))
    assert len(balancer.queue.heads()) == 500
    for waiter in waiters:
        policy.asked = 0
        balancer.release(placement.lease, 1.0)
        assert policy.asked <= 2, "one that is placed, and one that finds the node full"
        assert waiter.placement is not None, "in order of arrival"
        placement = waiter.placement
    balancer.release(placement.lease, 1.0)
    assert_settled(balancer)


def test_what_needs_less_is_tried_where_another_found_too_little() -> None:
    balancer = balancer_of(1, models=None, gpu_memory=24 * GB)
    route = route_of()
    held = [place(balancer, route, heavy(8 * GB)) for _ in range(3)]
    needs = {"a": 20, "b": 10, "c": 8, "d": 8}
    waiters = {name: Waiting() for name in needs}
    tickets = {name: wait(balancer, route, waiters[name], heavy(needs[name] * GB, model=name)) for name in needs}
    balancer.release(held.pop().lease, 1.0)
    placed = [waiter.placement for waiter in waiters.values()]
    assert [placement is not None for placement in placed] == [False, False, True, False]
    for name in needs:
        balancer.cancel(tickets[name])
    release_all(balancer, [*held, *[placement for placement in placed if placement is not None]], 2.0)
    assert_settled(balancer)


def test_what_a_waiter_gives_back_while_it_is_placed_goes_to_the_oldest_that_found_no_room() -> None:
    balancer = balancer_of(1, models=None, gpu_memory=24 * GB)
    route = route_of()
    held = [place(balancer, route, heavy(16 * GB)), place(balancer, route, heavy(8 * GB))]
    large = Waiting()
    gives_back = Waiting(lambda placement: release_all(balancer, [placement, held[0]], 1.0))
    wait(balancer, route, large, heavy(24 * GB, model="a"))
    wait(balancer, route, gives_back, heavy(8 * GB, model="b"))
    balancer.release(held[1].lease, 1.0)
    assert gives_back.placement is not None
    assert large.placement is not None, "it was found too large before, and fits now"
    balancer.release(large.placement.lease, 2.0)
    assert_settled(balancer)


# -- waiters that do something while they are told


def test_a_waiter_that_releases_at_once_does_not_start_the_line_over() -> None:
    balancer, held = full()
    route = route_of(size=2000)
    depth, deepest, order = 0, 0, []

    def releases(number: int) -> Callable[[Placement], None]:
        def then(placement: Placement) -> None:
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            order.append(number)
            assert balancer.release(placement.lease, 1.0)
            depth -= 1

        return then

    for number in range(2000):
        wait(balancer, route, Waiting(releases(number)))
    assert balancer.queue.length == 2000
    release_all(balancer, held, 1.0)
    assert order == list(range(2000))
    assert deepest == 1, "no recursion: 2,000 would overflow the stack"
    assert_settled(balancer)


def test_a_waiter_that_sends_its_next_request_while_it_is_placed_goes_to_the_end() -> None:
    balancer, held = full()
    route, order = route_of(), []
    again = Waiting(lambda p: order.append("again"))

    def then(placement: Placement) -> None:
        order.append("first")
        wait(balancer, route, again)
        balancer.release(placement.lease, 1.0)

    second = Waiting(lambda p: order.append("second"))
    wait(balancer, route, Waiting(then))
    wait(balancer, route, second)
    release_all(balancer, held, 1.0)
    assert order == ["first", "second"]
    assert second.placement is not None
    balancer.release(second.placement.lease, 2.0)
    assert order == ["first", "second", "again"]
    assert again.placement is not None
    balancer.release(again.placement.lease, 3.0)
    assert_settled(balancer)


def test_a_waiter_that_cancels_another_while_it_is_refused() -> None:
    balancer, held = full()
    route = route_of(wait=5.0)
    other = Waiting()

    class Cancels(Waiting):
        def refused(self, refusal: Refusal) -> None:
            super().refused(refusal)
            assert balancer.cancel(ticket)

    first = Cancels()
    wait(balancer, route, first)
    ticket = wait(balancer, route, other)
    balancer.tick(5.0)
    assert first.refusal is not None
    assert (other.refusal, other.placement) == (None, None)
    release_all(balancer, held)
    assert_settled(balancer)


class Broken(Waiting):
    """A waiter with a bug."""

    def placed(self, placement: Placement) -> None:
        raise RuntimeError("placed")

    def refused(self, refusal: Refusal) -> None:
        raise RuntimeError("refused")


def test_a_waiter_that_raises_loses_its_placement_and_nobody_else_does() -> None:
    balancer, held = full()
    route, good = route_of(), [Waiting(), Waiting()]
    for waiter in (Broken(), good[0], Broken(), good[1]):
        wait(balancer, route, waiter)
    with pytest.raises(ExceptionGroup, match="waiters failed") as caught:
        balancer.release(held[0].lease, 1.0)
    assert [str(error) for error in caught.value.exceptions] == ["placed"]
    assert good[0].placement is not None
    with pytest.raises(ExceptionGroup):
        balancer.release(good[0].placement.lease, 2.0)
    assert good[1].placement is not None
    balancer.release(good[1].placement.lease, 3.0)
    assert_settled(balancer)


def test_waiters_that_raise_when_their_time_is_over_do_not_keep_the_others_waiting() -> None:
    balancer, held = full()
    route, good, patient = route_of(wait=5.0), Waiting(), Waiting()
    for waiter in (Broken(), good, Broken()):
        wait(balancer, route, waiter)
    with pytest.raises(ExceptionGroup) as caught:
        balancer.tick(5.0)
    assert [str(error) for error in caught.value.exceptions] == ["refused", "refused"]
    assert good.refusal is not None
    wait(balancer, route, Broken(), now=5.0)
    wait(balancer, route_of(wait=60.0), patient, now=5.0)
    add_ready(balancer.fleet, "new", max_in_flight=1)
    with pytest.raises(ExceptionGroup) as caught:
        balancer.tick(6.0)
    assert [str(error) for error in caught.value.exceptions] == ["placed"]
    assert patient.placement is not None
    release_all(balancer, [*held, patient.placement])
    assert_settled(balancer)
