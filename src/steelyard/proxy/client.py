"""What an exchange needs of the connection that its request came on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Client(Protocol):
    """A client's connection."""

    peer: str
    """Its address, without the port."""
    trusted: bool
    """Whether what it says of those behind it counts."""
    write: Callable[[bytes], None]

    def pause_reading(self) -> None:
        """Take no further bytes of the request for now."""

    def resume_reading(self) -> None: ...

    def forwarding_lines(self, read: dict[bytes, bytes]) -> bytes:
        """X-Forwarded-* and Via for the node, given the headers that were read."""

    def exchange_ended(self, exchange: object, closing: bool) -> None:
        """The answer is written, or will not be. `closing`: no other request can follow it."""

    def close_abnormally(self, flush: bool) -> None:
        """End in the middle of an answer. Without `flush` with a reset, which nobody takes for an end."""

    def abort(self) -> None:
        """Cut the connection."""
