"""One request's life, from its head to the end of its answer, as a state machine without tasks.

    READING -> WAITING -> CONNECTING -> SENT -> RELAYING -> ENDED
       |          |           |          |         |
       +----------+-----------+----------+---------+----> ENDED   (refused, client gone, node broke, too late)

The three phases in the middle are an Attempt's; a request may have several. Whoever has something to say calls a
method: the client's connection, the balancer (`placed`, `refused`), the attempt, and the gateway's clock (`check`).
Every way out goes through `_end`, which gives back what the exchange holds: its place in the line, its lease, its
connection, its bytes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from steelyard.core.administration import path_refusal
from steelyard.core.placement import Placement
from steelyard.core.queue import Ticket
from steelyard.core.quota import Charge
from steelyard.core.refusal import Refusal
from steelyard.core.route import Route
from steelyard.core.work import Work
from steelyard.dialects import LARGE_BODY, MalformedBody, Operation, recognise
from steelyard.proxy.again import Repeating
from steelyard.proxy.alias import Renaming
from steelyard.proxy.attempt import Attempt
from steelyard.proxy.client import Client
from steelyard.proxy.cors import NODES as NODES_CORS
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.http1 import CONTINUE, MessageError, RequestHead, ResponseHead, status_line, without
from steelyard.proxy.rate_limit import NODES as NODES_LIMITS
from steelyard.proxy.rate_limit import rate_limit_lines
from steelyard.proxy.relay import Relay, plain_answer
from steelyard.proxy.request_body import RequestBody, too_large
from steelyard.proxy.tunnel import Tunnel
from steelyard.proxy.upstream import NodeConnection

IDLE_BODY_SECONDS: Final = 60.0
"""A client that sends no byte of its body for so long is given up; nginx's client_body_timeout."""
WHOLE_BODY_SECONDS: Final = 1800.0
"""And one that is not done with it after so long: a drip of bytes holds memory like a flood."""
TOO_LATE: Final = "the time that x-request-timeout allows has passed"


class Phase(Enum):
    READING = "reading"
    """The request's body is coming."""
    WAITING = "waiting"
    """In the line."""
    CONNECTING = "connecting"
    SENT = "sent"
    """The node has the request, and the client nothing of an answer."""
    RELAYING = "relaying"
    """The client has the head of the answer."""
    ENDED = "ended"


class Exchange(Repeating):
    """A request and its answer. Implements queue.Waiter, too."""

    # What most requests never change has its first value on the class: an exchange is made for every request, and
    # each assignment in its __init__ would be paid by all of them.
    tenant = ""
    work: Work | None = None
    route: Route | None = None
    renaming: Renaming | None = None
    charge: Charge | None = None
    """On its tenant's account; None where the tenant has no limits."""
    tunnel: Tunnel | None = None
    """What became of the two connections when client and node agreed on another protocol."""
    attempts = 0
    """Times that the request was, or was to be, sent to a node."""
    received = False
    """The request is here in full."""
    status = 0
    outcome = ""
    """Set once, by `_end`."""
    error = ""
    _paused_at = 0.0
    """Since when the client does not read; 0.0 while it does."""

    def __init__(self, client: Client, head: RequestHead, gateway: Gateway, now: float) -> None:
        self.client = client
        self.head = head
        self.gateway = gateway
        self.started_at = self._heard_at = now
        self.operation: Operation = recognise(head.method, head.path)
        self.request_id = gateway.request_id(head.read.get(b"x-request-id"))
        self.content = RequestBody(head, self.operation, gateway)

    @property
    def phase(self) -> Phase:
        """Where the request is in its life."""
        if self.outcome:
            return Phase.ENDED
        if self.tunnel is not None:
            return Phase.RELAYING
        attempt = self.attempt
        if attempt is None:
            return Phase.READING if self._ticket is None else Phase.WAITING
        if attempt.relay is not None:
            return Phase.RELAYING
        return Phase.CONNECTING if attempt.connection is None else Phase.SENT

    @property
    def placement(self) -> Placement | None:
        """The last one."""
        return self.attempt.placement if self.attempt is not None else None

    # -- the client's side

    def start(self) -> None:
        """The head is here: check what can be checked before the body."""
        head, gateway = self.head, self.gateway
        tenant = gateway.tenant(head.read)
        if isinstance(tenant, Refusal):
            self.refuse(tenant)
            return
        self.tenant = tenant
        if not head.has_body:
            return
        limit = gateway.settings.limits.body
        if head.content_length is not None and head.content_length > limit:
            self.refuse(too_large(limit))
            return
        if head.minor and head.read.get(b"expect", b"").lower() == b"100-continue":
            self.client.write(CONTINUE)
        content = self.content
        if content.streamed:
            self._admit_safely()
        elif head.content_length is not None and head.content_length > LARGE_BODY:
            try:
                content.prepare(head.read.get(b"content-type", b""))
            except MalformedBody as error:
                self.refuse(Refusal("malformed_request", str(error)))

    def body(self, data: bytes) -> None:
        """A piece of the request's body."""
        content, attempt = self.content, self.attempt
        try:
            refusal = content.add(data, self.head.read.get(b"content-type", b""))
        except MalformedBody as error:
            refusal = Refusal("malformed_request", str(error))
        if refusal is not None:
            self._fail(refusal)
        elif not content.streamed:
            if content.size != self.head.content_length:
                self._heard_at = self.gateway.clock()
        elif attempt is None or not attempt.body():
            refusal = content.must_not_wait()
            if refusal is not None:
                self._fail(refusal)
            elif content.overflowing:
                self.client.pause_reading()

    def body_end(self) -> None:
        """The request is complete."""
        self.received = True
        if self.content.streamed:
            if self.attempt is not None:
                self.attempt.body_end()
            return
        refusal = self.content.whole()
        if refusal is not None:
            self.refuse(refusal)
            return
        self._admit_safely()

    def request_broken(self, error: MessageError) -> None:
        """The bytes of the body are not what its framing promised."""
        self._fail(Refusal(error.code, str(error)))

    def client_gone(self, broken: bool) -> None:
        """The client's connection is closed (`broken`: not in order): whatever is under way for it stops."""
        if self.tunnel is not None:
            self.tunnel.client_lost(broken)
        else:
            self._end("client_gone", 499)

    def client_paused(self) -> None:
        """The client reads slower than the node writes."""
        self._paused_at = self.gateway.clock()
        if self.tunnel is not None:
            self.tunnel.client_paused(self._paused_at)
        elif self.attempt is not None:
            self.attempt.client_paused(self._paused_at)

    def client_resumed(self) -> None:
        self._paused_at = 0.0
        if self.tunnel is not None:
            self.tunnel.client_resumed(self.gateway.clock())
        elif self.attempt is not None:
            self.attempt.client_resumed(self.gateway.clock())

    def cut(self) -> None:
        """The gateway ends now."""
        self._fail(Refusal("draining", "the gateway ends before the request could be finished"))

    # -- placing

    def _admit_safely(self) -> None:
        try:
            self._admit()
        except MalformedBody as error:
            self.refuse(Refusal("malformed_request", str(error)))
        except Exception:
            # A mistake of ours with this one request: it has its answer, and the loop's log has the rest.
            self.refuse(Refusal("internal_error", "the gateway failed on this request"))
            raise

    def _admit(self) -> None:
        """Raises MalformedBody."""
        gateway, head = self.gateway, self.head
        work = self.work = self.content.read(head.read.get(b"content-type", b""), head.target)
        trusted = self.client.trusted
        if trusted and head.read.get(b"x-steelyard-tenant"):
            self.tenant = head.read[b"x-steelyard-tenant"].decode("latin-1")
        gateway.complete(work, head.read, self.tenant, self.started_at)
        route = self.route = gateway.route(head, work)
        if route is None:
            self.refuse(Refusal("not_found", f"no route for {head.path}"))
            return
        # What is known by name is inference, and rules nothing.
        refusal = path_refusal(head.method, head.path, self.operation.name != "other" or route.match.names_path)
        if refusal is not None:
            self.refuse(refusal)
            return
        if trusted:
            gateway.take_hints(work, route, head.read)
        now = gateway.clock()
        if work.deadline is not None and now >= work.deadline:
            self.refuse(Refusal("deadline_exceeded", TOO_LATE))
            return
        if gateway.quotas is not None:
            footprint = work.footprint = work.footprint or route.footprint(work)
            charge = gateway.quotas.charge(self.tenant, footprint.tokens, now)
            if isinstance(charge, Refusal):
                self.refuse(charge)
                return
            self.charge = charge
        result = gateway.balancer.admit(work, route, now, self)
        if isinstance(result, Placement):
            self.placed(result)
        elif isinstance(result, Ticket):
            self._ticket = result
        else:
            self.refuse(result)

    def placed(self, placement: Placement) -> None:
        """The balancer found a node, at once or after a wait."""
        self._ticket = None
        work, content = placement.lease.work, self.content
        # First of all, since it is the attempt that gives the lease back, whatever goes wrong from here.
        attempt = self.attempt = Attempt(self, placement)
        if work.model is not work.asked_model and (self.renaming is None or self.renaming.served != work.model):
            # Who gets another model than the one asked for is told its name.
            self.renaming = Renaming(work.asked_model or "", work.model or "", hidden=not work.fallback)
            content.rename(self.renaming, self.head.read.get(b"content-type", b""))
        if self._paused_at:
            attempt.client_paused(self._paused_at)
        self.attempts += 1
        # A streamed body cannot be sent again: it does not run the risk of a connection that is being closed.
        gateway, node = self.gateway, placement.node
        attempt.start(gateway.upstreams.get(node) or gateway.upstream(node), content.streamed)

    def refused(self, refusal: Refusal) -> None:
        """Waited for too long."""
        self._ticket = None
        self.refuse(refusal)

    # -- time

    def check(self, now: float) -> None:
        """Called about four times a second: end what takes too long."""
        work, route, attempt = self.work, self.route, self.attempt
        if self.tunnel is not None:
            if route is not None:
                self.tunnel.check(now, route.timeouts.idle)
        elif work is not None and work.deadline is not None and now >= work.deadline:
            self._fail(Refusal("deadline_exceeded", TOO_LATE))
        elif attempt is None:
            if self._ticket is not None:
                return
            if now - self._heard_at > IDLE_BODY_SECONDS:
                message = f"no byte of the request's body came for {IDLE_BODY_SECONDS:g} s"
                self.refuse(Refusal("client_timeout", message))
            elif now - self.started_at > WHOLE_BODY_SECONDS:
                message = f"the request's body was not complete after {WHOLE_BODY_SECONDS:g} s"
                self.refuse(Refusal("client_timeout", message))
        elif route is not None and now - self.started_at > route.timeouts.total:
            message = f"the request took longer than {route.timeouts.total:g} s in all"
            self._fail(Refusal("deadline_exceeded", message))
        else:
            attempt.check(now)

    # -- another protocol

    def begin_tunnel(self, connection: NodeConnection, head: ResponseHead, behind: bytes, now: float) -> None:
        """The node has agreed to go on with the protocol that the client wants."""
        self.content.drop()
        protocol = self.head.upgrade
        tunnel = self.tunnel = Tunnel(self, self.client, connection, protocol, now)
        connection.switched = tunnel
        own = self.own_lines()
        end = b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % protocol
        self.client.write(b"".join((status_line(101, head.reason), *head.relay, own, end)))
        ahead = self.client.begin_tunnel(tunnel)
        if ahead:
            tunnel.from_client(ahead, now)
        if behind:
            tunnel.from_node(behind)
        if self._paused_at:
            tunnel.client_paused(self._paused_at)

    def tunnel_ended(self, outcome: str, error: str) -> None:
        """Both connections of the tunnel are closed, or are closing."""
        self.error = error
        self._end(outcome, 101, True)

    # -- every way out

    def answered(self, status: int) -> None:
        """The answer is whole."""
        self._end("ok", status)

    def own_lines(self) -> bytes:
        """The gateway's own header lines for the answer."""
        gateway = self.gateway
        lines = gateway.answer_lines(self.request_id, self.placement)
        if gateway.quotas is not None:
            use = gateway.quotas.use(self.tenant)
            if use is not None:
                lines += rate_limit_lines(use, gateway.clock())
        return lines + gateway.cors_lines(self.head.read)

    def take_out(self, head: ResponseHead) -> None:
        """Remove from a node's head what the gateway itself says there."""
        prefixes: tuple[bytes, ...] = ()
        if self.charge is not None:
            prefixes = (NODES_LIMITS,)
        if self.gateway.settings.cors is not None:
            prefixes = (*prefixes, NODES_CORS)
        if prefixes:
            head.relay = without(head.relay, (), prefixes)

    @property
    def _relay(self) -> Relay | None:
        return self.attempt.relay if self.attempt is not None else None

    def _fail(self, refusal: Refusal) -> None:
        if self.tunnel is not None:
            self.tunnel.cut(refusal.code, refusal.message)
        elif self._relay is None:
            self.refuse(refusal)
        else:
            self.break_off(refusal.code, refusal.message)

    def refuse(self, refusal: Refusal) -> None:
        """An error instead of an answer; the client has nothing of an answer yet."""
        if self.outcome:
            return
        self.error = refusal.message
        gateway = self.gateway
        closing = gateway.draining or not self.received or not self.head.keep_alive
        request_id = self.request_id.decode("latin-1")
        body = self.operation.error(refusal.status, refusal.code, refusal.message, request_id)
        lines = self.own_lines()
        if refusal.retry_after is not None:
            lines += b"Retry-After: %d\r\n" % max(1, round(refusal.retry_after))
        self.client.write(plain_answer(refusal.status, body, b"application/json", lines, self.head, closing))
        self._end(refusal.code, refusal.status, closing)

    def break_off(self, code: str, message: str) -> None:
        """The client has a part of the answer: end it so that nobody takes it for whole."""
        self.error = message
        relay = self._relay
        if relay is None:
            self.client.abort()
            self._end(code, self.status or 499, True)
            return
        relay.fail(code, message)
        self._end(code, relay.status, True)

    def _end(self, outcome: str, status: int, closing: bool = False) -> None:
        """The only way to ENDED: give everything back, once."""
        if self.outcome:
            return
        self.outcome = outcome
        self.status = status
        gateway, attempt = self.gateway, self.attempt
        if self._ticket is not None:
            gateway.balancer.cancel(self._ticket)
            self._ticket = None
        self.content.drop()
        now = gateway.clock()
        relay = None
        if attempt is not None:
            relay = attempt.relay
            if relay is not None:
                closing = closing or relay.closes
                if outcome == "ok" and status < 400:
                    # A stream is judged by its first token: its length is the client's choice.
                    scanner = relay.scanner
                    until = now if scanner is None else scanner.first_token_at or attempt.first_byte_at
                    attempt.placement.node.latency.observe(until - attempt.sent_at, now)
        charge = self.charge
        if charge is not None:
            tokens: int | None = None
            if relay is None:
                tokens = 0
            elif charge.use.tokens is not None and (usage := relay.usage()) is not None:
                tokens = usage.prompt_tokens + usage.completion_tokens
            charge.settle(tokens, now)
        if self._retrying:
            self._retrying = False
            gateway.balancer.retried()
        gateway.exchanges.discard(self)
        self.client.exchange_ended(self, closing)
        # Last, since it concerns other requests too: what goes wrong with them must not stop this one's end.
        try:
            if attempt is not None:
                attempt.end(now)
        finally:
            gateway.accounting.add(self, relay, now)
