"""What an attempt, and a tunnel, need of the request that they serve, and whom they tell what came of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from steelyard.core.refusal import Refusal
from steelyard.core.route import Route
from steelyard.core.work import Work
from steelyard.dialects import Operation
from steelyard.proxy.alias import Renaming
from steelyard.proxy.client import Client
from steelyard.proxy.gateway import Gateway
from steelyard.proxy.http1 import RequestHead, ResponseHead
from steelyard.proxy.request_body import RequestBody
from steelyard.proxy.upstream import NodeConnection


class Request(ABC):
    """One request of a client."""

    client: Client
    head: RequestHead
    gateway: Gateway
    operation: Operation
    request_id: bytes
    content: RequestBody
    route: Route | None
    renaming: Renaming | None
    received: bool
    work: Work | None

    @abstractmethod
    def own_lines(self) -> bytes:
        """The gateway's own header lines for the answer."""

    @abstractmethod
    def take_out(self, head: ResponseHead) -> None:
        """Remove from a node's head what the gateway itself says there."""

    @abstractmethod
    def may_go_elsewhere(self) -> bool:
        """Whether the request may be sent to another node if this one does not begin."""

    @abstractmethod
    def retry(self, reason: str) -> bool:
        """The node did not begin. True when another one is tried."""

    @abstractmethod
    def may_redispatch(self) -> bool:
        """Whether the request may be sent to another node if this one breaks, or is silent, before its answer."""

    @abstractmethod
    def redispatch(self, reason: str) -> bool:
        """The node broke, or is silent, with the request. True when another one is tried."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """Nothing of an answer will come."""

    @abstractmethod
    def break_off(self, code: str, message: str) -> None:
        """The rest of the answer will not come."""

    @abstractmethod
    def begin_tunnel(self, connection: NodeConnection, head: ResponseHead, behind: bytes, now: float) -> None:
        """The node has agreed to go on with the protocol that the client wants."""

    @abstractmethod
    def tunnel_ended(self, outcome: str, error: str) -> None:
        """Both connections of the tunnel are closed, or are closing."""

    @abstractmethod
    def answered(self, status: int) -> None:
        """The answer is whole."""
