"""Many emulated nodes in one process."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from steelyard.emulator.clock import EmulatedClock
from steelyard.emulator.node import EmulatedNode
from steelyard.emulator.profile import EmulatorError, NodeProfile


class EmulatedFleet:
    """The nodes of ``profiles``: node i listens on ``port`` + i, or on a free port when ``port`` is 0.

    ``time_scale`` is real seconds per emulated second; ``seed`` fixes what the models say and which requests a
    fault strikes. Use as ``async with EmulatedFleet([...]) as fleet`` or call ``start`` and ``close``.
    """

    def __init__(
        self,
        profiles: Iterable[NodeProfile],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        time_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not time_scale > 0:
            raise EmulatorError(f"time scale must be above 0, not {time_scale}")
        self.host = host
        self.port = port
        self.time_scale = time_scale
        self.seed = seed
        self.nodes: list[EmulatedNode] = []
        self._profiles = list(profiles)
        self._made = 0
        self._clock: EmulatedClock | None = None

    @property
    def clock(self) -> EmulatedClock:
        """Emulated time; it begins with ``start``."""
        if self._clock is None:
            raise EmulatorError("the fleet has not started")
        return self._clock

    async def start(self) -> None:
        """Start every node; when one cannot, none is left and EmulatorError is raised."""
        raise_descriptor_limit()
        self._clock = EmulatedClock(asyncio.get_running_loop(), self.time_scale)
        try:
            for profile in self._profiles:
                await self.add(profile)
        except EmulatorError:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop every node and end its connections."""
        for node in self.nodes:
            await node.close()
        self.nodes.clear()

    async def add(self, profile: NodeProfile) -> EmulatedNode:
        """One more node joins and listens."""
        self._made += 1
        name = profile.name or f"gpu-{self._made}"
        port = profile.port or (self.port + self._made - 1 if self.port else 0)
        if port > 65535:
            raise EmulatorError(f"node {name} would need port {port}; the largest is 65535")
        if self.find(name) is not None:
            raise EmulatorError(f"two nodes are named {name!r}")
        node = EmulatedNode(
            replace(profile, name=name, port=port), self.clock, host=self.host, seed=self.seed, sibling=self.find
        )
        await node.start()
        self.nodes.append(node)
        return node

    async def remove(self, name: str) -> None:
        """A node leaves at once: its listener and its connections close. KeyError when there is none."""
        node = self.find(name)
        if node is None:
            raise KeyError(name)
        await node.close()
        self.nodes.remove(node)

    def find(self, name: str) -> EmulatedNode | None:
        """The node of this name."""
        return next((node for node in self.nodes if node.name == name), None)

    async def __aenter__(self) -> EmulatedFleet:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def uniform(count: int, profile: NodeProfile, speeds: Sequence[float] = ()) -> list[NodeProfile]:
    """``count`` nodes like ``profile``; ``speeds``: none, one for all, or one a node. Raises EmulatorError."""
    if count < 1:
        raise EmulatorError(f"a fleet needs at least 1 node, not {count}")
    if len(speeds) not in (0, 1, count):
        raise EmulatorError(f"{len(speeds)} speeds for {count} nodes; give one, or one a node")
    if not speeds:
        return [profile] * count
    return [replace(profile, speed=speeds[index % len(speeds)]) for index in range(count)]


def raise_descriptor_limit() -> None:
    """Let this process open as many sockets as the system permits: each stream is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says "unlimited" and means less; the soft limit is then what there is.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
