"""Sending a request once more, to another node: when that is right, and when it would be done twice.

A *retry* follows when the node did not begin; the route limits how often, and the budget how many at the same time. A
*re-dispatch* follows when a node died, or went silent, with the request: once, and only if doing it twice does no harm.
"""

from __future__ import annotations

from abc import abstractmethod

from steelyard.core.node import Node
from steelyard.core.placement import Placement
from steelyard.core.queue import Ticket
from steelyard.core.refusal import Refusal
from steelyard.proxy.attempt import Attempt
from steelyard.proxy.request import Request


class Repeating(Request):
    """A request that knows whether it may be sent again."""

    # The first values stand on the class: see Exchange.
    attempt: Attempt | None = None
    """The last one."""
    _ticket: Ticket | None = None
    _tried: tuple[Node, ...] = ()
    _redispatched = False
    _retrying = False
    """It holds a part of the retry budget."""

    @abstractmethod
    def placed(self, placement: Placement) -> None:
        """The balancer found a node."""

    @abstractmethod
    def refused(self, refusal: Refusal) -> None:
        """Waited for too long."""

    def may_go_elsewhere(self) -> bool:
        """Whether the route's rule for retries lets the request be sent once more, if its node did not begin."""
        work, route, attempt = self.work, self.route, self.attempt
        if work is None or route is None or attempt is None:
            return False
        if attempt.raced:
            # The node may have had the request already, over the connection that it was closing.
            return self.may_redispatch()
        if attempt.placement.node.engine == "generic" and attempt.dispatched and not work.repeatable:
            # Of an unknown engine nobody knows whether a 503 came before the work.
            return False
        return not self.content.sent and len(self._tried) < route.retry.retries

    def retry(self, reason: str) -> bool:
        """The node did not begin: try another, within the budget. True when the request is on its way."""
        balancer, route, attempt = self.gateway.balancer, self.route, self.attempt
        if attempt is not None and attempt.raced:
            return self.redispatch("broke" if reason == "refused" else reason)
        if route is None or not self.may_go_elsewhere():
            return False
        if not self._retrying:
            if not balancer.may_retry(route):
                return False
            self._retrying = True
        return self._elsewhere(reason)

    def may_redispatch(self) -> bool:
        """Whether sending it a second time does no harm, and was not done yet."""
        work = self.work
        if work is None or self._redispatched or self.content.sent:
            return False
        return work.repeatable or b"idempotency-key" in self.head.read

    def redispatch(self, reason: str) -> bool:
        """The node died, or went silent, with the request: send it to another if that does no harm. Once."""
        if not self.may_redispatch():
            return False
        self._redispatched = True
        return self._elsewhere(reason)

    def _elsewhere(self, reason: str) -> bool:
        gateway, attempt, work, route = self.gateway, self.attempt, self.work, self.route
        if attempt is None or work is None or route is None:
            return False
        self._tried = (*self._tried, attempt.placement.node)
        now = gateway.clock()
        # A busy answer is there to be passed on; without an answer the request can as well wait in the line.
        waiter = None if reason == "busy" else self
        result = gateway.balancer.admit(work, route, now, waiter, self._tried)
        if isinstance(result, Refusal):
            return False
        attempt.end(now)
        gateway.accounting.counters.retried(reason)
        if isinstance(result, Ticket):
            self.attempt = None
            self._ticket = result
        else:
            self.placed(result)
        return True
