"""The line: first in, first out; bounded per route; a place is given up exactly once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from steelyard.core.queue import LineKey, Queue, Ticket

from .building import Waiting, chat, route_of

A: LineKey = ("route", "openai", "a", None, ())
B: LineKey = ("route", "openai", "b", None, ())


def join(queue: Queue, key: LineKey = A, size: int = 1000, now: float = 0.0, wait: float = 30.0) -> Ticket | None:
    return queue.join(chat(), route_of(name=key[0], size=size), Waiting(), key, now, wait)


def joined(queue: Queue, key: LineKey = A, now: float = 0.0, wait: float = 30.0) -> Ticket:
    ticket = join(queue, key, now=now, wait=wait)
    assert ticket is not None
    return ticket


def test_first_in_first_out() -> None:
    queue = Queue()
    tickets = [joined(queue) for _ in range(5)]
    for ticket in tickets:
        assert queue.heads() == [ticket]
        assert queue.leave(ticket)
    assert queue.heads() == []


def test_a_place_is_given_up_once() -> None:
    queue = Queue()
    ticket = joined(queue)
    assert ticket.waiting
    assert queue.leave(ticket)
    assert not ticket.waiting
    assert not queue.leave(ticket)
    assert (queue.length, queue.waiting(A), queue.of_route("route")) == (0, False, 0)


def test_who_leaves_from_the_middle_moves_nobody_else() -> None:
    queue = Queue()
    first, second, third = joined(queue), joined(queue), joined(queue)
    queue.leave(second)
    assert queue.heads() == [first]
    queue.leave(first)
    assert queue.heads() == [third]


def test_the_length_of_every_line_is_told() -> None:
    queue = Queue()
    assert queue.lengths() == {}
    first = joined(queue, A)
    joined(queue, A)
    joined(queue, B)
    assert queue.lengths() == {A: 2, B: 1}
    queue.leave(first)
    assert queue.lengths() == {A: 1, B: 1}


def test_every_set_of_candidates_has_its_line_and_the_older_head_comes_first() -> None:
    queue = Queue()
    a, b, behind_a = joined(queue, A), joined(queue, B), joined(queue, A)
    assert queue.heads() == [a, b]
    queue.leave(a)
    assert queue.heads() == [b, behind_a]
    assert queue.waiting(A)
    assert queue.waiting(B)
    queue.leave(b)
    assert not queue.waiting(B)


def test_the_bound_is_per_route_over_all_its_lines_and_a_refusal_leaves_no_trace() -> None:
    queue = Queue()
    a, b = join(queue, A, size=2), join(queue, B, size=2)
    assert a is not None
    assert b is not None
    for _ in range(100):
        assert join(queue, A, size=2) is None
    other = join(queue, ("other", "openai", "a", None, ()), size=2)
    assert other is not None
    assert (queue.length, queue.of_route("route"), queue.of_route("other")) == (3, 2, 1)
    queue.leave(a)
    assert join(queue, B, size=2) is not None


def test_a_bound_of_zero_lets_nobody_wait() -> None:
    assert join(Queue(), size=0) is None


def test_who_has_waited_too_long_is_named_oldest_first_and_still_stands_in_the_line() -> None:
    queue = Queue()
    patient = joined(queue, A, wait=60.0)
    late_b, late_a = joined(queue, B, now=1.0), joined(queue, A, now=2.0)
    assert queue.expired(30.9) == []
    assert queue.expired(31.0) == [late_b]
    assert queue.expired(32.0) == [late_b, late_a]
    assert queue.length == 3
    assert patient.expires_at == 60.0


class QueueAgainstLists(RuleBasedStateMachine):
    """Joining and leaving in any order, against plain lists."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.lines: dict[LineKey, list[Ticket]] = {}
        self.now = 0.0

    @rule(target=tickets, route=st.sampled_from(["r", "s"]), model=st.sampled_from("abc"), wait=st.floats(0, 20))
    def join(self, route: str, model: str, wait: float) -> Ticket | None:
        key = (route, "openai", model, None, ())
        ticket = join(self.queue, key, size=6, now=self.now, wait=wait)
        there = sum(len(line) for other, line in self.lines.items() if other[0] == route)
        assert (ticket is None) == (there >= 6)
        if ticket is not None:
            self.lines.setdefault(key, []).append(ticket)
        return ticket

    @rule(ticket=tickets)
    def leave(self, ticket: Ticket | None) -> None:
        if ticket is not None:
            stood = ticket in self.lines[ticket.key]
            assert self.queue.leave(ticket) == stood
            if stood:
                self.lines[ticket.key].remove(ticket)

    @rule(passing=st.floats(0, 10))
    def pass_time(self, passing: float) -> None:
        self.now += passing

    @invariant()
    def the_lines_are_the_same(self) -> None:
        everybody = sorted((t for line in self.lines.values() for t in line), key=lambda t: t.sequence)
        assert self.queue.length == len(everybody)
        assert self.queue.heads() == sorted((line[0] for line in self.lines.values() if line), key=lambda t: t.sequence)
        assert self.queue.expired(self.now) == [t for t in everybody if t.expires_at <= self.now]
        assert self.queue.lengths() == {key: len(line) for key, line in self.lines.items() if line}
        for key, line in self.lines.items():
            assert self.queue.waiting(key) == bool(line)
        for route in "rs":
            assert self.queue.of_route(route) == sum(t.route.name == route for t in everybody)


TestQueueAgainstLists = QueueAgainstLists.TestCase
TestQueueAgainstLists.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
