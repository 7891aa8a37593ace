"""The ledger: example by example, then against a naive model that keeps a list of everything reserved."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from steelyard.core.ledger import Lease, LeaseState, Ledger
from steelyard.core.node import UNLIMITED, Node, NodeSpec
from steelyard.core.work import Footprint, Work

from .building import assert_idle


def node_of(**spec: int) -> Node:
    return Node(NodeSpec("gpu-1", "http://gpu-1", **spec))  # type: ignore[arg-type]


def reserve(ledger: Ledger, node: Node, footprint: Footprint | None = None, now: float = 0.0) -> Lease:
    lease = ledger.reserve(node, Work(), footprint or Footprint(), now)
    assert lease is not None
    return lease


def test_a_lease_counts_until_it_is_released_and_only_once() -> None:
    ledger, node = Ledger(), node_of(max_in_flight=2, gpu_memory=24)
    lease = reserve(ledger, node, Footprint(memory=18, seconds=8.0, tokens=100), now=5.0)
    assert (lease.state, lease.granted_at, lease.node) == (LeaseState.LIVE, 5.0, node)
    assert (node.in_flight, node.free_slots, node.served, ledger.live) == (1, 1, 1, 1)
    assert (node.reserved_memory, node.free_memory, node.reserved_seconds, node.reserved_tokens) == (18, 6, 8.0, 100)
    assert ledger.release(lease)
    assert not ledger.release(lease)
    assert not ledger.orphan(lease, 6.0)
    assert ledger.live == 0
    assert_idle(node)
    assert node.served == 1


def test_no_slot_no_lease() -> None:
    ledger, node = Ledger(), node_of(max_in_flight=1)
    lease = reserve(ledger, node)
    assert ledger.reserve(node, Work(), Footprint(), 0.0) is None
    ledger.release(lease)
    assert ledger.reserve(node, Work(), Footprint(), 0.0) is not None


def test_eighteen_gigabytes_do_not_fit_beside_eight_on_a_card_of_24_unless_memory_is_ignored() -> None:
    ledger, node = Ledger(), node_of(gpu_memory=24)
    reserve(ledger, node, Footprint(memory=8))
    assert ledger.reserve(node, Work(), Footprint(memory=18), 0.0) is None
    assert ledger.reserve(node, Work(), Footprint(memory=16), 0.0) is not None
    naive = ledger.reserve(node, Work(), Footprint(memory=18), 0.0, enforce_memory=False)
    assert naive is not None
    assert node.free_memory == -18


def test_an_orphan_keeps_its_bytes_until_its_end_is_seen() -> None:
    ledger, node = Ledger(), node_of(gpu_memory=24)
    lease = reserve(ledger, node, Footprint(memory=18, seconds=8.0))
    assert ledger.orphan(lease, 1.0)
    assert not ledger.orphan(lease, 1.0)
    assert (ledger.live, ledger.orphaned, node.orphaned, node.in_flight, node.free_memory) == (0, 1, 1, 1, 6)
    assert ledger.release(lease)
    assert (ledger.live, ledger.orphaned) == (0, 0)
    assert_idle(node)


@pytest.mark.parametrize(("speed", "left_at", "overdue"), [(1.0, 1.0, 24.0), (2.0, 1.0, 12.0), (1.0, 30.0, 30.0)])
def test_an_orphan_expires_when_its_job_must_have_ended(speed: float, left_at: float, overdue: float) -> None:
    ledger = Ledger()
    node = Node(NodeSpec("gpu-1", "http://gpu-1", speed=speed))
    assert ledger.expire(0.0) == []
    lease = reserve(ledger, node, Footprint(seconds=8.0))
    ledger.orphan(lease, left_at)
    assert ledger.expire(overdue - 0.1) == []
    assert node.in_flight == 1
    assert ledger.expire(overdue) == [lease]
    assert lease.state is LeaseState.RELEASED
    assert_idle(node)


def test_void_forgets_the_orphans_of_one_node_only() -> None:
    ledger, node, other = Ledger(), node_of(), node_of()
    orphan, live, elsewhere = reserve(ledger, node), reserve(ledger, node), reserve(ledger, other)
    ledger.orphan(orphan, 0.0)
    ledger.orphan(elsewhere, 0.0)
    assert ledger.void(node) == [orphan]
    assert (node.in_flight, node.orphaned, other.orphaned, ledger.live) == (1, 0, 1, 1)
    ledger.release(live)
    ledger.release(elsewhere)
    assert_idle(node)
    assert_idle(other)


def test_a_lease_of_an_older_epoch_no_longer_counts() -> None:
    ledger, node = Ledger(), node_of(max_in_flight=4, gpu_memory=24)
    old, late = reserve(ledger, node, Footprint(memory=8)), reserve(ledger, node, Footprint(memory=8))
    ledger.reset(node)
    assert_idle(node)
    new = reserve(ledger, node, Footprint(memory=18))
    assert ledger.release(old)
    ledger.orphan(late, 0.0)
    assert (node.in_flight, node.orphaned, node.reserved_memory) == (1, 0, 18)
    ledger.release(late)
    ledger.release(new)
    assert (ledger.live, ledger.orphaned) == (0, 0)
    assert_idle(node)


def test_sums_of_seconds_never_drift_below_zero_nor_away_from_it() -> None:
    ledger, node = Ledger(), node_of()
    nothing = reserve(ledger, node, Footprint(seconds=0.0))
    first, second = reserve(ledger, node, Footprint(seconds=0.7)), reserve(ledger, node, Footprint(seconds=0.1))
    third = reserve(ledger, node, Footprint(seconds=0.3))
    for lease in (first, second, third):
        ledger.release(lease)
        assert node.reserved_seconds >= 0.0
    ledger.release(nothing)
    assert node.reserved_seconds == 0.0


# -- against a naive model


@dataclass(eq=False)
class Entry:
    """The model's lease: a row in a list. `counts` is False once its node's epoch ended."""

    node: int
    footprint: Footprint
    granted_at: float
    state: str = "live"
    counts: bool = True
    overdue_at: float = 0.0


FOOTPRINTS = st.builds(
    Footprint,
    memory=st.integers(0, 12),
    seconds=st.floats(0.0, 10.0, allow_subnormal=False),
    tokens=st.integers(0, 1000),
)
NODES = st.integers(0, 2)


class LedgerAgainstModel(RuleBasedStateMachine):
    """Anything that can happen to leases, in any order."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.nodes = [
            Node(NodeSpec("a", "http://a", max_in_flight=3, gpu_memory=24)),
            Node(NodeSpec("b", "http://b", gpu_memory=16, speed=2.0)),
            Node(NodeSpec("c", "http://c", max_in_flight=2)),
        ]
        self.entries: list[tuple[Lease, Entry]] = []
        self.now = 0.0

    def counting(self, number: int) -> list[Entry]:
        return [e for _, e in self.entries if e.node == number and e.counts and e.state != "released"]

    @rule(target=leases, number=NODES, footprint=FOOTPRINTS, enforce=st.booleans())
    def reserve(self, number: int, footprint: Footprint, enforce: bool) -> object:
        node, spec = self.nodes[number], self.nodes[number].spec
        there = self.counting(number)
        slots = UNLIMITED if spec.max_in_flight is None else spec.max_in_flight
        memory = UNLIMITED if spec.gpu_memory is None else spec.gpu_memory
        fits = len(there) < slots and (
            not enforce or sum(e.footprint.memory for e in there) + footprint.memory <= memory
        )
        lease = self.ledger.reserve(node, Work(), footprint, self.now, enforce)
        assert (lease is not None) == fits
        if lease is None:
            return multiple()
        entry = Entry(number, footprint, self.now)
        self.entries.append((lease, entry))
        return (lease, entry)

    @rule(pair=leases)
    def release(self, pair: tuple[Lease, Entry]) -> None:
        lease, entry = pair
        assert self.ledger.release(lease) == (entry.state != "released")
        entry.state = "released"

    @rule(pair=consumes(leases))
    def release_twice(self, pair: tuple[Lease, Entry]) -> None:
        lease, entry = pair
        self.ledger.release(lease)
        entry.state = "released"
        assert not self.ledger.release(lease)

    @rule(pair=leases)
    def orphan(self, pair: tuple[Lease, Entry]) -> None:
        lease, entry = pair
        assert self.ledger.orphan(lease, self.now) == (entry.state == "live")
        if entry.state == "live":
            entry.state = "orphaned"
            speed = self.nodes[entry.node].speed
            entry.overdue_at = max(self.now, entry.granted_at + 3.0 * entry.footprint.seconds / speed)

    @rule(passing=st.floats(0.0, 20.0))
    def expire(self, passing: float) -> None:
        self.now += passing
        ended = self.ledger.expire(self.now)
        expected = [(lease, e) for lease, e in self.entries if e.state == "orphaned" and e.overdue_at <= self.now]
        assert set(ended) == {lease for lease, _ in expected}
        for _, entry in expected:
            entry.state = "released"

    @rule(number=NODES)
    def void(self, number: int) -> None:
        ended = self.ledger.void(self.nodes[number])
        expected = [(lease, e) for lease, e in self.entries if e.state == "orphaned" and e.node == number]
        assert set(ended) == {lease for lease, _ in expected}
        for _, entry in expected:
            entry.state = "released"

    @rule(number=NODES)
    def reset(self, number: int) -> None:
        self.ledger.reset(self.nodes[number])
        for _, entry in self.entries:
            if entry.node == number:
                entry.counts = False
                if entry.state == "orphaned":
                    entry.state = "released"

    @rule(
        number=NODES,
        slots=st.none() | st.integers(1, 5),
        memory=st.none() | st.integers(1, 30),
    )
    def reconfigure(self, number: int, slots: int | None, memory: int | None) -> None:
        node = self.nodes[number]
        node.reconfigure(NodeSpec(node.name, node.spec.url, max_in_flight=slots, gpu_memory=memory, speed=node.speed))

    @invariant()
    def every_counter_is_the_sum_over_the_leases_that_count(self) -> None:
        states = [e.state for _, e in self.entries]
        assert self.ledger.live == states.count("live")
        assert self.ledger.orphaned == states.count("orphaned")
        for number, node in enumerate(self.nodes):
            there = self.counting(number)
            assert node.in_flight == len(there)
            assert node.orphaned == sum(e.state == "orphaned" for e in there)
            assert node.free_slots == node.max_in_flight - len(there)
            assert node.reserved_memory == sum(e.footprint.memory for e in there)
            assert node.free_memory == node.memory_capacity - node.reserved_memory
            assert node.reserved_tokens == sum(e.footprint.tokens for e in there)
            assert node.reserved_seconds >= 0.0
            assert node.reserved_seconds == pytest.approx(sum(e.footprint.seconds for e in there), abs=1e-9)
            if not there:
                assert node.reserved_seconds == 0.0

    def teardown(self) -> None:
        for lease, _ in self.entries:
            self.ledger.release(lease)
        assert (self.ledger.live, self.ledger.orphaned) == (0, 0)
        for node in self.nodes:
            assert_idle(node)


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
