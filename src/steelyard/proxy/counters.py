"""What the data path counts: plain integers, read when somebody scrapes."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS: Final[tuple[float, ...]] = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""Upper bounds in seconds: from a cached embedding to a long video."""


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        if value == 0.0:
            # Most waits in the line.
            self.counts[0] += 1
            return
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Cell:
    """The counters of one (route, node). A request that reached no node is counted under node ""."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "completion_tokens",
        "first_byte",
        "first_token",
        "outcomes",
        "prompt_tokens",
        "total",
    )

    def __init__(self) -> None:
        self.outcomes: dict[tuple[int, str], int] = {}
        """(status, outcome) -> requests. Both come from closed sets: see `accounting.COUNTED`."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.total = Histogram()
        """From the request's head to the end of its answer, seconds."""
        self.first_byte = Histogram()
        """From sending to the node to the first byte of its answer, seconds."""
        self.first_token = Histogram()
        """Streams: from the request's head to the first token, seconds."""


class Counters:
    """All counters of the data path."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self.queue_seconds = Histogram()
        self.retries: dict[str, int] = {}
        """Reason (refused, busy, race, broke, silent) -> second and further sendings."""
        self.connections = 0
        """Client connections accepted, ever."""
        self.connections_refused = 0
        self.bad_requests = 0
        """Messages that were no HTTP, or broke a limit before a route was known."""
        self.node_connections = 0
        """Connections opened to nodes, ever."""
        self.loop_lag_max = 0.0
        """Longest lateness of the periodic sweep since the last scrape, seconds."""

    def cell(self, route: str, node: str) -> Cell:
        key = (route, node)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        return cell

    def retried(self, reason: str) -> None:
        self.retries[reason] = self.retries.get(reason, 0) + 1

    def forget(self, node: str) -> None:
        """A node is gone for good: its cells are dropped, so that names that come and go stay bounded."""
        for key in [key for key in self.cells if key[1] == node]:
            del self.cells[key]
