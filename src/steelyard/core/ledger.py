"""The ledger: what is reserved on which node, and the leases that stand for it."""

from __future__ import annotations

from enum import StrEnum

from steelyard.core.node import Node
from steelyard.core.work import Footprint, Work


class LeaseState(StrEnum):
    LIVE = "live"
    ORPHANED = "orphaned"
    """The client is gone, but the node goes on computing: the bytes stay reserved."""
    RELEASED = "released"


class Lease:
    """The reservation of a Footprint on a Node. Released exactly once; releasing it again does nothing."""

    __slots__ = ("epoch", "footprint", "granted_at", "ledger", "node", "overdue_at", "state", "work")

    def __init__(self, ledger: Ledger, node: Node, work: Work, footprint: Footprint, now: float) -> None:
        self.ledger = ledger
        self.node = node
        self.work = work
        self.footprint = footprint
        self.granted_at = now
        self.epoch = node.epoch
        self.state = LeaseState.LIVE
        self.overdue_at = 0.0
        """Of an orphaned lease: when its bytes are given back if nothing was heard of the job, in seconds."""


class Ledger:
    """All leases of a fleet. The only writer of the nodes' counters.

    Invariants: a node's counters are the sums over its live and orphaned leases of its epoch; no counter is ever
    negative; a grant never exceeds `free_slots`, nor (where memory is enforced) `free_memory`.
    """

    __slots__ = ("_orphans", "live")

    def __init__(self) -> None:
        self.live = 0
        """Leases that are neither orphaned nor released."""
        self._orphans: set[Lease] = set()

    @property
    def orphaned(self) -> int:
        return len(self._orphans)

    def reserve(
        self, node: Node, work: Work, footprint: Footprint, now: float, enforce_memory: bool = True
    ) -> Lease | None:
        """Reserve and return the lease; None when it does not fit."""
        if node.free_slots <= 0 or (enforce_memory and footprint.memory > node.free_memory):
            return None
        node.in_flight += 1
        node.free_slots -= 1
        node.served += 1
        node.reserved_seconds += footprint.seconds
        if footprint.memory:
            node.reserved_memory += footprint.memory
            node.free_memory -= footprint.memory
        node.reserved_tokens += footprint.tokens
        self.live += 1
        return Lease(self, node, work, footprint, now)

    def release(self, lease: Lease) -> bool:
        """Give everything back. True the first time, False (and no effect) after that."""
        if lease.state is LeaseState.RELEASED:
            return False
        if lease.state is LeaseState.ORPHANED:
            self._orphans.discard(lease)
            if lease.epoch == lease.node.epoch:
                lease.node.orphaned -= 1
        else:
            self.live -= 1
        lease.state = LeaseState.RELEASED
        node = lease.node
        if lease.epoch == node.epoch:
            footprint = lease.footprint
            node.in_flight -= 1
            node.free_slots += 1
            if node.in_flight:
                # Sums of floats drift, also below zero.
                node.reserved_seconds = max(node.reserved_seconds - footprint.seconds, 0.0)
            else:
                # An empty node has exactly nothing reserved.
                node.reserved_seconds = 0.0
            if footprint.memory:
                node.reserved_memory -= footprint.memory
                node.free_memory += footprint.memory
            node.reserved_tokens -= footprint.tokens
        return True

    def orphan(self, lease: Lease, now: float) -> bool:
        """The client left a node that goes on computing: keep the reservation until the job must have ended.

        True when the lease was live. It ends by `release` (the end was seen) or by `expire`.
        """
        if lease.state is not LeaseState.LIVE:
            return False
        lease.state = LeaseState.ORPHANED
        lease.overdue_at = max(now, lease.granted_at + lease.footprint.seconds_limit / lease.node.speed)
        self.live -= 1
        if lease.epoch == lease.node.epoch:
            lease.node.orphaned += 1
        self._orphans.add(lease)
        return True

    def expire(self, now: float) -> list[Lease]:
        """Release the orphaned leases whose time has passed, and return them."""
        if not self._orphans:
            return []
        ended = [lease for lease in self._orphans if lease.overdue_at <= now]
        for lease in ended:
            self.release(lease)
        return ended

    def void(self, node: Node) -> list[Lease]:
        """The node's process is gone, and with it all that ran there: forget its orphans, and return them.

        Live leases are released by whoever holds them, when their connection breaks.
        """
        ended = [lease for lease in self._orphans if lease.node is node]
        for lease in ended:
            self.release(lease)
        return ended

    def reset(self, node: Node) -> None:
        """All that was reserved on the node no longer counts (another process took its place): a new epoch."""
        self.void(node)
        node.epoch += 1
        node.in_flight = 0
        node.orphaned = 0
        node.reserved_seconds = 0.0
        node.reserved_memory = 0
        node.reserved_tokens = 0
        node.free_slots = node.max_in_flight
        node.free_memory = node.memory_capacity - node.resident_memory
