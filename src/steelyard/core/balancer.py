"""The one entrance to the decisions: admit a Work, get a Placement, a place in the line, or a Refusal."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from math import ceil
from random import Random
from typing import Final

from steelyard.core.eligibility import objection, shortage, speaks
from steelyard.core.fleet import Fleet
from steelyard.core.ledger import Lease, Ledger
from steelyard.core.node import UNLIMITED, Node, State
from steelyard.core.placement import Explanation, Option, Placement
from steelyard.core.policies.registry import Policy
from steelyard.core.queue import LineKey, Queue, Ticket, Waiter, line_key
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route
from steelyard.core.work import Footprint, Work

SCANNED: Final = 64
"""Up to so many candidates all are compared; among more a sample is. A scan of 64 costs what a decision may cost."""
SAMPLE: Final = 12
"""Nodes drawn from more than SCANNED candidates. The least of d random nodes is near the least of all already at
d = 2 (power of two choices); more cost nothing noticeable and help when many are full."""
DECISIONS: Final = 1000
"""Decisions remembered for people."""
RETRIES_AT_LEAST: Final = 3
"""Retries that are always allowed at the same time, however few requests are live."""
TURNS: Final = 8
"""Turns of nodes in slow start that a decision passes over at most."""
IGNORED: Final = -UNLIMITED
"""Stands for the memory of a work where memory is ignored: it fits also where reservations exceed the card."""


class Balancer:
    """Decides. Selecting and reserving is one synchronous call; every lease that it gives comes back by `release`."""

    def __init__(self, fleet: Fleet, rng: Random) -> None:
        self.fleet = fleet
        self.rng = rng
        self.ledger = Ledger()
        self.queue = Queue()
        self.decisions: deque[tuple[float, Work, Placement | Refusal]] = deque(maxlen=DECISIONS)
        """The latest, oldest first. Works hold sizes and names, no contents."""
        self.retrying = 0
        self._serving = False
        """Whether the line is being served; a waiter that releases meanwhile must not start over."""
        self._full: dict[int, tuple[Sequence[Node], int]] = {}
        """While the line is served: the candidate lists that were found full (by identity; the entry holds the list, so
        that its id is not given to another) and the least memory that fitted none of them."""

    # -- admission

    def admit(
        self, work: Work, route: Route, now: float, waiter: Waiter | None = None, excluded: Collection[Node] = ()
    ) -> Placement | Ticket | Refusal:
        """Place the work now, or give it a place in the line (only with a `waiter`), or refuse it.

        `excluded` are nodes that it was already tried on: it never goes there again. With them it does not stand behind
        those who wait; it joins a line of its own when there are others that are only full now.
        """
        fleet = self.fleet
        if work.model is not None and work.model in fleet.aliases:
            work.model = fleet.aliases[work.model]
        candidates: Sequence[Node] = fleet.candidates(work.dialect, work.model, work.version)
        if not candidates:
            refusal = self._nobody(work)
            if refusal.code == "no_node" and self._fall_back(work, route):
                return self.admit(work, route, now, waiter, excluded)
            return self._decided(work, refusal, now)
        if work.footprint is None:
            work.footprint = route.footprint(work)
        queue = self.queue
        if not queue.length or excluded:
            placement = self._place(work, route, candidates, 0.0, now, excluded)
            if placement is not None:
                return placement
            if excluded and (waiter is None or not self._others(work, route, candidates, excluded)):
                if all(node in excluded for node in candidates) and self._fall_back(work, route):
                    return self.admit(work, route, now, waiter, excluded)
                return self._decided(work, Refusal("no_node", "no other node can take the request", 1.0), now)
            key = line_key(work, route, excluded)
        else:
            key = line_key(work, route)
            if not queue.waiting(key):
                placement = self._place(work, route, candidates, 0.0, now)
                if placement is not None:
                    return placement
        return self._line_up(work, route, candidates, waiter, key, now)

    def _fall_back(self, work: Work, route: Route) -> bool:
        """Go on with the route's other model. False when there is none, or it is that already."""
        model = route.fallback
        if model is None or work.fallback or work.model is None:
            return False
        model = self.fleet.aliases.get(model, model)
        if model == work.model or not self.fleet.candidates(work.dialect, model, work.version):
            return False
        work.model = model
        work.fallback = True
        if work.footprint is not None and work.footprint.source != "hint":
            work.footprint = None
        return True

    def _place(
        self,
        work: Work,
        route: Route,
        candidates: Sequence[Node],
        queued: float,
        now: float,
        excluded: Collection[Node] = (),
    ) -> Placement | None:
        footprint = work.footprint
        assert footprint is not None
        policy = route.policy
        memory = footprint.memory if route.enforce_memory else IGNORED
        if excluded:
            candidates = [node for node in candidates if node not in excluded]
            if not candidates:
                return None
        pool = candidates
        if policy.sampled:
            if len(pool) > SCANNED:
                pool = self.rng.choices(pool, k=SAMPLE)
            if self.fleet.ramping:
                pool = self._without_cold(pool, now)
        node = policy.pick(pool, work, footprint, memory, now, self.rng)
        if node is None and pool is not candidates:
            pool = candidates
            node = policy.pick(pool, work, footprint, memory, now, self.rng)
        if node is None:
            return None
        if node in self.fleet.ramping and policy.slow_start and not policy.sampled:
            node = self._pass_over(node, candidates, work, footprint, memory, policy, now)
        score = policy.score(node, work, footprint, now)
        lease = self.ledger.reserve(node, work, footprint, now, route.enforce_memory)
        assert lease is not None, f"policy {policy.name} picked a node that cannot take the work"
        placement = Placement(lease, route, len(pool), score, queued, now)
        self.decisions.append((now, work, placement))
        return placement

    def _others(self, work: Work, route: Route, candidates: Sequence[Node], excluded: Collection[Node]) -> bool:
        # Whether a candidate that was not tried yet could ever take the work.
        assert work.footprint is not None
        memory = work.footprint.memory if route.enforce_memory else IGNORED
        return any(node not in excluded and memory <= _room(node) for node in candidates)

    def _without_cold(self, candidates: Sequence[Node], now: float) -> Sequence[Node]:
        # Slow start, the same for every policy that compares: a cold node takes part in a share of the decisions, and
        # holds no more than that share of what the warm ones hold on average. The former counts while most are idle;
        # the latter under load, where a node that holds little would win every decision it takes part in.
        fleet, draw = self.fleet, self.rng.random
        if fleet.ramping.isdisjoint(candidates):
            return candidates
        pool = [node for node in candidates if node not in fleet.ramping]
        if not pool:
            return candidates
        mean = sum([node.in_flight for node in pool]) / len(pool)
        for node in [node for node in candidates if node in fleet.ramping]:
            share = fleet.share(node, now)
            if draw() < share and node.in_flight < max(share * mean, 1.0):
                pool.append(node)
        return pool

    def _pass_over(
        self,
        node: Node,
        candidates: Sequence[Node],
        work: Work,
        footprint: Footprint,
        memory: int,
        policy: Policy,
        now: float,
    ) -> Node:
        # Slow start for the policies that keep an order: a share of a cold node's turns counts, the others go on to
        # the next. They keep their place by the list they are given, so it stays the same list.
        fleet, rng = self.fleet, self.rng
        for _ in range(TURNS):
            if node not in fleet.ramping or rng.random() < fleet.share(node, now):
                break
            following = policy.pick(candidates, work, footprint, memory, now, rng)
            assert following is not None, "nothing was reserved since the last pick"
            node = following
        return node

    def _line_up(
        self, work: Work, route: Route, candidates: Sequence[Node], waiter: Waiter | None, key: LineKey, now: float
    ) -> Ticket | Refusal:
        footprint = work.footprint
        assert footprint is not None
        too_large = self._too_large(work, footprint, route, candidates)
        if too_large is not None:
            return self._decided(work, too_large, now)
        wait = route.queue.wait
        if work.deadline is not None:
            wait = min(wait, max(work.deadline - now, 0.0))
        if waiter is not None:
            ticket = self.queue.join(work, route, waiter, key, now, wait)
            if ticket is not None:
                return ticket
        # Advice needs no more than a look at some: under overload a refusal must stay cheap.
        soonest = min(node.reserved_seconds / (node.speed * max(node.in_flight, 1)) for node in candidates[:SCANNED])
        retry_after = float(min(max(1, ceil(soonest)), 60))
        if waiter is None:
            return self._decided(work, Refusal("overloaded", "every node is full", retry_after), now)
        message = f"every node is full and {self.queue.of_route(route.name)} requests wait already"
        return self._decided(work, Refusal("queue_full", message, retry_after), now)

    def _too_large(self, work: Work, footprint: Footprint, route: Route, candidates: Sequence[Node]) -> Refusal | None:
        # It does not wait for a large node that is down: the small requests behind it would, too.
        memory = footprint.memory
        if not route.enforce_memory or not memory:
            return None
        largest = max([_room(node) for node in candidates])
        if memory <= largest:
            return None
        needs = f"the request needs {memory} bytes of GPU memory"
        having = [n for n in self.fleet.having(work.dialect, work.model) if work.version in (None, n.version)]
        large = [node for node in having if memory <= _room(node)]
        if large:
            states = _states(large)
            return Refusal("no_node", f"{needs}; no node with so much can serve now ({len(large)} {states})", 5.0)
        largest = max([largest, *[_room(node) for node in having]])
        return Refusal("does_not_fit", f"{needs}; the largest node has {largest}")

    def _nobody(self, work: Work) -> Refusal:
        """Why there is no candidate at all."""
        nodes = [node for node in self.fleet.nodes.values() if speaks(node.engine, work.dialect)]
        model, version = work.model, work.version
        if not nodes:
            known = ", ".join(sorted({node.engine for node in self.fleet.nodes.values()}))
            if not known:
                return Refusal("no_node", "no node is configured", 5.0)
            return Refusal("no_node", f"no node speaks {work.dialect} (engines here: {known})", 5.0)
        having = self.fleet.having(work.dialect, model)
        if not having:
            known_models = sorted({*self.fleet.models(), *self.fleet.aliases})
            near = get_close_matches(str(model), known_models, n=1)
            message = f"the model {model!r} does not exist"
            if near:
                message += f"; did you mean {near[0]!r}?"
            elif known_models:
                message += f"; there are: {', '.join(known_models[:20])}"
            return Refusal("unknown_model", message)
        if version is not None and all(node.version != version for node in having):
            there = ", ".join(self.fleet.versions(model)) or "none"
            return Refusal("unknown_version", f"version {version!r} does not exist; there are: {there}")
        return Refusal("no_node", f"no node can serve now ({len(having)} {_states(having)})", 5.0)

    def _decided(self, work: Work, refusal: Refusal, now: float) -> Refusal:
        self.decisions.append((now, work, refusal))
        return refusal

    # -- the end of a lease, and what it sets free

    def release(self, lease: Lease, now: float) -> bool:
        """Give a lease back and serve the line with what became free. False if it was released before."""
        released = self.ledger.release(lease)
        if released and self.queue.length:
            self.serve_line(now)
        return released

    def cancel(self, ticket: Ticket) -> bool:
        """The waiter no longer waits; True the first time."""
        return self.queue.leave(ticket)

    def serve_line(self, now: float) -> None:
        """Place whoever waits and fits now. Called whenever something became free or the fleet changed.

        A waiter that raises loses its placement, not those behind it: what was raised is raised again, together
        (ExceptionGroup), when everybody was served.
        """
        if self._serving:
            # A waiter that was just placed gave its lease back at once: the loop below sees it.
            self._full.clear()
            return
        self._serving = True
        raised: list[Exception] = []
        try:
            while self._place_one_waiting(now, raised):
                pass
        finally:
            self._serving = False
            self._full.clear()
        if raised:
            raise ExceptionGroup("waiters failed when they were placed", raised)

    def _place_one_waiting(self, now: float, raised: list[Exception]) -> bool:
        # Clients make up as many lines as they like where nodes take any model: passing one over must cost little. All
        # of those share one list of candidates.
        fleet, full = self.fleet, self._full
        for ticket in self.queue.heads():
            work, route = ticket.work, ticket.route
            if ticket.generation != fleet.generation:
                ticket.candidates = fleet.candidates(work.dialect, work.model, work.version)
                ticket.generation = fleet.generation
            candidates = ticket.candidates
            if not candidates:
                continue
            footprint = work.footprint
            assert footprint is not None
            memory = footprint.memory if route.enforce_memory else IGNORED
            excluded = ticket.key[4]
            known = full.get(id(candidates))
            if known is not None and memory >= known[1]:
                continue
            placement = self._place(work, route, candidates, now - ticket.queued_at, now, excluded)
            if placement is None:
                if not excluded:
                    full[id(candidates)] = (candidates, memory)
            else:
                self.queue.leave(ticket)
                try:
                    ticket.waiter.placed(placement)
                except Exception as error:
                    self.ledger.release(placement.lease)
                    raised.append(error)
                return True
        return False

    def tick(self, now: float) -> None:
        """What only time brings: orphaned leases end, slow starts end, and who has waited too long is refused.

        The line is served too, so that nobody waits for ever for a change that nobody announced. Exceptions of waiters
        are raised as by `serve_line`.
        """
        self.ledger.expire(now)
        fleet = self.fleet
        for node in tuple(fleet.ramping):
            fleet.share(node, now)
        if not self.queue.length:
            return
        raised: list[Exception] = []
        for ticket in self.queue.expired(now):
            if not self.queue.leave(ticket):
                continue
            work, waited = ticket.work, now - ticket.queued_at
            why = "every node was full"
            if not fleet.candidates(work.dialect, work.model, work.version):
                why = f"no node is left that serves {work.model or work.dialect}"
            refusal = Refusal("queue_timeout", f"waited {waited:.1f} s and {why}", 5.0)
            try:
                ticket.waiter.refused(self._decided(work, refusal, now))
            except Exception as error:
                raised.append(error)
        try:
            self.serve_line(now)
        except ExceptionGroup as group:
            raised.extend(group.exceptions)
        if raised:
            raise ExceptionGroup("waiters failed", raised)

    # -- retries

    def may_retry(self, route: Route) -> bool:
        """Whether the budget allows one more retry now; if so it is taken, and `retried` gives it back."""
        if self.retrying >= max(RETRIES_AT_LEAST, int(self.ledger.live * route.retry.budget)):
            return False
        self.retrying += 1
        return True

    def retried(self) -> None:
        """A retry has ended."""
        self.retrying -= 1

    # -- for people

    def explain(self, work: Work, route: Route, now: float) -> Explanation:
        """Where the work would go now, and what speaks against every other node. Nothing is reserved.

        `node` is the one that the policy likes best; None where it does not compare. A policy that draws two nodes, or
        is given a sample of a large fleet, may take another.
        """
        if work.model is not None:
            work.model = self.fleet.aliases.get(work.model, work.model)
        footprint = work.footprint or route.footprint(work)
        candidates = self.fleet.candidates(work.dialect, work.model, work.version)
        serving = set(candidates)
        options = []
        for node in self.fleet.nodes.values():
            if node in serving:
                against = shortage(node, footprint.memory, route.enforce_memory)
            else:
                # What is not a candidate for no reason of its own has the base model only, and others the adapter.
                against = objection(node, work, 0, False) or f"does not serve model {work.model}"
            score = route.policy.score(node, work, footprint, now) if against is None else None
            options.append(Option(node, against, score))
        options.sort(key=lambda o: (o.objection is not None, o.score if o.score is not None else 0.0, o.node.name))
        if not candidates:
            refusal = self._nobody(work)
            return Explanation(refusal.code, None, refusal.message, options)
        free = [option for option in options if option.objection is None]
        waiting = self.queue.waiting(line_key(work, route))
        if free and not waiting:
            best = free[0].node if free[0].score is not None else None
            return Explanation("placed", best, f"{route.policy.name} among {len(free)}", options)
        too_large = self._too_large(work, footprint, route, candidates)
        if too_large is not None:
            return Explanation(too_large.code, None, too_large.message, options)
        length = self.queue.of_route(route.name)
        if length >= route.queue.size:
            return Explanation("queue_full", None, f"every node is full and {length} requests wait already", options)
        reason = "others wait already" if waiting else "every node is full"
        return Explanation("queued", None, reason, options)


def _room(node: Node) -> int:
    """The most memory in bytes that one work may ever have there."""
    return node.memory_capacity - node.resident_memory


def _states(nodes: Sequence[Node]) -> str:
    """Why nodes take nothing, for people: their states, or that their weight is 0."""
    return "/".join(sorted({str(node.state) if node.state is not State.READY else "weight 0" for node in nodes}))
