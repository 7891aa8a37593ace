"""What an exchange needs of the connection that its request came on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from steelyard.proxy.http1 import RequestHead
from steelyard.proxy.switched import Switched


class Client(ABC):
    """A client's connection.

    A base class and not a Protocol: of a class that it knows, the compiler reaches attributes and methods directly.
    """

    __slots__ = ("peer", "trusted", "write")

    peer: str
    """Its address, without the port."""
    trusted: bool
    """Whether what it says of those behind it counts."""
    write: Callable[[bytes], None]

    @abstractmethod
    def pause_reading(self) -> None:
        """Take no further bytes of the request for now."""

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def forwarding_lines(self, head: RequestHead) -> bytes:
        """X-Forwarded-* and Via for the node."""

    @abstractmethod
    def begin_tunnel(self, tunnel: Switched) -> bytes:
        """From now on the client's bytes are the tunnel's; those are returned that have come already."""

    @abstractmethod
    def write_eof(self) -> bool:
        """Send nothing more, but go on reading. False where that cannot be."""

    @abstractmethod
    def mark(self) -> None:
        """Remember how much of its answers the client has not taken."""

    @abstractmethod
    def takes(self) -> bool:
        """Whether the client, slow as it may be, has taken something since this, or `mark`, was called last."""

    @abstractmethod
    def exchange_ended(self, exchange: object, closing: bool) -> None:
        """The answer is written, or will not be. `closing`: no other request can follow it."""

    @abstractmethod
    def close_abnormally(self, flush: bool) -> None:
        """End in the middle of an answer. Without `flush` with a reset, which nobody takes for an end."""

    @abstractmethod
    def abort(self) -> None:
        """Cut the connection."""
