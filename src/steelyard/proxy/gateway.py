"""The gateway: what all exchanges share, and the clock that ends what takes too long."""

from __future__ import annotations

import asyncio
import errno
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from steelyard.config.units import parse_duration, parse_size
from steelyard.core.balancer import Balancer
from steelyard.core.node import Event, Node, State
from steelyard.core.placement import Placement
from steelyard.core.quota import Quotas
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route, first_match
from steelyard.core.work import Work
from steelyard.dialects import MalformedBody
from steelyard.proxy.access_log import AccessLog
from steelyard.proxy.accounting import Accounting
from steelyard.proxy.counters import Counters
from steelyard.proxy.forwarding import credential_in_protocols, harmless, is_trusted
from steelyard.proxy.http1 import HeaderTable, RequestHead
from steelyard.proxy.session_key import session_key
from steelyard.proxy.settings import Settings
from steelyard.proxy.upstream import Upstream


class Running(Protocol):
    """A request under way."""

    attempts: int

    def check(self, now: float) -> None: ...

    def cut(self) -> None: ...


class Connected(Protocol):
    """A client's connection."""

    def check(self, now: float) -> None: ...

    def use_settings(self) -> None: ...

    def close_if_idle(self) -> None: ...

    def abort(self) -> None: ...


UNIX_PEER: Final = "unix:"
"""Stands for the address of a client that came through a Unix socket."""
SWEEP_SECONDS: Final = 0.25
"""How often timeouts are looked at: the shortest of them is seconds long."""
LONGEST_HINT: Final = 86_400.0
"""Seconds of work that a hint may state; a sum of absurd ones would not be a number any more."""


class Gateway:
    """Shared state of the data path. Everything here happens on one event loop, in callbacks."""

    def __init__(
        self,
        balancer: Balancer,
        settings: Settings,
        log: AccessLog,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.balancer = balancer
        self.log = log
        self.loop = loop
        self.clock = clock
        self.accounting = Accounting(Counters(), log)
        self.exchanges: set[Running] = set()
        """Requests under way."""
        self.begun = 0
        """Requests that were ever under way: each of them is counted, and logged, exactly once when it ends."""
        self.clients: set[Connected] = set()
        self.body_memory = 0
        """Bytes of request bodies held."""
        self.body_disk = 0
        """The same on disk."""
        self.draining = False
        """No new connections are wanted; answers say so."""
        self.ready = False
        """Whether a load balancer in front should send requests here: from the first ready node on, until it drains.
        That all nodes are down for a while does not end it: a clear 503 from here beats a refused connection."""
        self.descriptors = 1 << 20
        """File descriptors that connections may use."""
        self.upstreams: dict[Node, Upstream] = {}
        random = secrets.token_hex(10)
        # Shaped like a UUID of version 4: there are servers that take nothing else for a request id.
        self._request_prefix = f"{random[:8]}-{random[8:12]}-4{random[12:15]}-a{random[15:18]}-".encode()
        self._requests = 0
        self.quotas: Quotas | None = None
        """None: no tenant has limits."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self._second_due = 0.0
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Take over a configuration. Requests under way keep the route that they have."""
        table = settings.header_table()
        self.settings = settings
        self._keys = settings.keys
        self.table: HeaderTable = table
        self.own_keys = bool(settings.keys)
        """Whether clients' credentials are the gateway's, and not their nodes'."""
        quotas = None
        if settings.quotas:
            quotas = Quotas(settings.quotas, settings.quotas.get("*"))
            if self.quotas is not None:
                quotas.take_over(self.quotas)
        self.quotas = quotas
        routes = settings.routes
        for client in self.clients:
            client.use_settings()
        sources = {source for route in routes for source in route.session_sources}
        names = {name.encode("latin-1") for kind, name in sources if kind == "header"}
        if any(kind == "cookie" for kind, _ in sources):
            names.add(b"cookie")
        self._session_names = frozenset(names)
        """Headers that may hold a session key on some route: most requests have none of them."""
        catch_all = len(routes) == 1 and routes[0].match.accepts("", None, {})
        self._only_route: Route | None = routes[0] if catch_all else None

    @property
    def counters(self) -> Counters:
        """The counters, up to date."""
        self.accounting.settle()
        return self.accounting.counters

    # -- clock

    def start(self) -> None:
        """Begin to sweep."""
        self._sweep_due = self.clock() + SWEEP_SECONDS
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def cut(self) -> None:
        """End every request that is under way with an error, and close the connections when they have it."""
        self.ready = False
        self.draining = True
        # Those who wait first, or the places that become free would be given to them.
        for exchange in sorted(self.exchanges, key=lambda running: running.attempts):
            exchange.cut()
        self.close_idle_clients()

    def stop(self) -> None:
        """Stop sweeping and close every connection that is left. Call `cut` before."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for client in list(self.clients):
            client.abort()
        for upstream in list(self.upstreams.values()):
            upstream.close()
        self.accounting.settle()
        self.log.close()

    def _sweep(self) -> None:
        now = self.clock()
        lag = now - self._sweep_due
        counters = self.accounting.counters
        if lag > counters.loop_lag_max:
            counters.loop_lag_max = lag
        try:
            self.sweep(now)
        finally:
            self._sweep_due = self.clock() + SWEEP_SECONDS
            self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def sweep(self, now: float) -> None:
        """Everything that only time brings. A failure in one place stops none of the others."""
        for exchange in list(self.exchanges):
            try:
                exchange.check(now)
            except Exception as error:
                self._report("a request could not be checked", error)
                exchange.cut()
        steps = [self.balancer.tick]
        if now >= self._second_due:
            self._second_due = now + 1.0
            steps += [self._sweep_nodes, self._sweep_clients]
        for step in steps:
            try:
                step(now)
            except Exception as error:
                self._report("a periodic step failed", error)
        self.accounting.settle()
        self.log.flush()

    def _sweep_nodes(self, now: float) -> None:
        for node, upstream in list(self.upstreams.items()):
            upstream.sweep(now)
            if node.leaving and node.state is State.DRAINING and not node.in_flight:
                self.node_event(node, Event.EMPTIED)
            if node.state is State.GONE and not upstream.open and not node.in_flight:
                del self.upstreams[node]

    def _sweep_clients(self, now: float) -> None:
        for client in list(self.clients):
            client.check(now)

    def _report(self, message: str, error: Exception) -> None:
        self.loop.call_exception_handler({"message": message, "exception": error})

    def close_idle_clients(self) -> None:
        """Close the client connections that carry no request."""
        for client in list(self.clients):
            client.close_if_idle()

    @property
    def connection_limit(self) -> int:
        """How many client connections there may be: each of them may need a second descriptor, towards a node."""
        return min(self.settings.limits.connections, max(1, self.descriptors // 2))

    # -- nodes

    def upstream(self, node: Node) -> Upstream:
        """The connections of a node."""
        upstream = self.upstreams.get(node)
        if upstream is None:
            upstream = self.upstreams[node] = Upstream(node, self.loop, self.clock)
        return upstream

    def node_event(self, node: Node, event: Event) -> bool:
        """Something happened to a node; who waits may be served by it now. True when its state changed."""
        now = self.clock()
        changed = self.balancer.fleet.apply(node, event, now)
        if changed:
            if node.state is State.GONE:
                self.upstream(node).close()
                if node.name not in self.balancer.fleet.nodes:
                    self.counters.forget(node.name)
            elif node.state is State.READY and not self.draining:
                self.ready = True
            self.balancer.serve_line(now)
        return changed

    def node_refused(self, node: Node) -> None:
        """Nobody listens at the node's address: it is down, and what it computed for nobody is lost."""
        self.balancer.ledger.void(node)
        self.node_event(node, Event.FAILED)

    def out_of_descriptors(self, error: OSError) -> bool:
        return error.errno in (errno.EMFILE, errno.ENFILE)

    def trusts(self, peer: str) -> bool:
        """Whether a peer (its address, or UNIX_PEER) is a proxy whose word for its clients counts."""
        settings = self.settings
        return settings.trust_unix if peer == UNIX_PEER else is_trusted(peer, settings.trusted)

    # -- what an exchange asks

    def request_id(self, given: bytes | None) -> bytes:
        """The client's x-request-id when it is harmless, else a new one."""
        if given is not None and harmless(given):
            return given
        self._requests += 1
        return b"%b%012x" % (self._request_prefix, self._requests)

    def tenant(self, read: Mapping[bytes, bytes]) -> str | Refusal:
        """The tenant of a request with these headers; the only one ("") when no keys are configured."""
        keys = self._keys
        if not keys:
            return ""
        given = read.get(b"x-api-key")
        if given is None:
            scheme, _, credentials = read.get(b"authorization", b"").partition(b" ")
            if scheme.lower() == b"bearer":
                given = credentials.strip()
        if not given and b"sec-websocket-protocol" in read:
            given = credential_in_protocols(read[b"sec-websocket-protocol"])
        if not given:
            return Refusal("missing_api_key", "an API key is needed: Authorization: Bearer <key>, or x-api-key")
        tenant = keys.get(given.decode("latin-1"))
        if tenant is None:
            return Refusal("invalid_api_key", "the API key is not known here")
        return tenant

    def complete(self, work: Work, read: Mapping[bytes, bytes], tenant: str, started_at: float) -> None:
        """Add to a Work what headers say: version, deadline. Raises MalformedBody when they make no sense."""
        work.tenant = tenant
        if read.get(b"model-version"):
            work.version = read[b"model-version"].decode("latin-1")
        if b"x-request-timeout" in read:
            try:
                seconds = parse_duration(read[b"x-request-timeout"].decode("latin-1"))
            except ValueError as error:
                raise MalformedBody(f"header x-request-timeout: {error}") from None
            work.deadline = started_at + seconds

    def take_hints(self, work: Work, route: Route, read: Mapping[bytes, bytes]) -> None:
        """What a trusted peer states of a request: priority, memory, seconds. Raises MalformedBody."""
        memory, seconds = read.get(b"x-steelyard-memory"), read.get(b"x-steelyard-seconds")
        try:
            if b"x-steelyard-priority" in read:
                work.priority = int(read[b"x-steelyard-priority"])
            if memory is None and seconds is None:
                return
            footprint = work.footprint = route.footprint(work)
            footprint.source = "hint"
            if memory is not None:
                footprint.memory = parse_size(memory.decode("latin-1"))
            if seconds is not None:
                footprint.seconds = parse_duration(seconds.decode("latin-1"))
                if footprint.seconds > LONGEST_HINT:
                    raise ValueError(f"x-steelyard-seconds must be at most {LONGEST_HINT:g}, not {footprint.seconds:g}")
        except ValueError as error:
            raise MalformedBody(f"a header x-steelyard-*: {error}") from None

    def route(self, head: RequestHead, work: Work) -> Route | None:
        """The first route that matches; the Work gets the session key that the route looks for."""
        route = self._only_route
        if route is None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.read.items()}
            route = first_match(self.settings.routes, head.path, work.model, headers)
            if route is None:
                return None
        if work.session_fields or not self._session_names.isdisjoint(head.read):
            key = session_key(route, head.read, work.session_fields)
            if key is not None:
                # Two tenants with equal keys are two sessions.
                work.session = f"{work.tenant}\0{key}"
        return route

    def answer_lines(self, request_id: bytes, placement: Placement | None) -> bytes:
        """The gateway's own header lines in an answer."""
        if placement is None or not self.settings.response_headers:
            return b"x-request-id: %b\r\n" % request_id
        return b"%bx-steelyard-reason: %b\r\nx-steelyard-queue-ms: %d\r\nx-request-id: %b\r\n" % (
            self.upstream(placement.node).node_line,
            placement.reason.encode("latin-1", "replace"),
            int(placement.queued * 1000),
            request_id,
        )

    def cors_lines(self, read: Mapping[bytes, bytes]) -> bytes:
        """The header lines of an answer that tell a browser whether its page may read it."""
        cors = self.settings.cors
        return b"" if cors is None or b"origin" not in read else cors.lines(read[b"origin"])
