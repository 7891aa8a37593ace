"""What the two connections need of a tunnel: who receives their bytes once they are no HTTP any more."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Switched(ABC):
    """Receives the bytes, and the ends, of a client's and of a node's connection."""

    __slots__ = ()

    @abstractmethod
    def from_client(self, data: bytes, now: float) -> None: ...

    @abstractmethod
    def client_ended(self) -> None:
        """The client sends nothing more; it may still read."""

    @abstractmethod
    def from_node(self, data: bytes) -> None: ...

    @abstractmethod
    def node_ended(self) -> None:
        """The node sends nothing more; it may still read."""

    @abstractmethod
    def node_lost(self, error: Exception | None) -> None:
        """The node's connection is closed; with an error, it broke."""

    @abstractmethod
    def node_pause(self) -> None:
        """The node does not take the bytes as fast as they come."""

    @abstractmethod
    def node_resume(self) -> None: ...
