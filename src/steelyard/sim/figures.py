"""From records to figures: rates, latencies and shares. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from steelyard.sim.load import Record


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the sorted `values` do not exceed: the nearest rank.

    No interpolation: every figure is a latency that somebody had. NaN when there are no values.
    """
    if not values:
        return math.nan
    return values[max(0, math.ceil(share * len(values)) - 1)]


class Latencies(NamedTuple):
    """Seconds."""

    number: int
    mean: float
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Latencies:
        ordered = sorted(values)
        if not ordered:
            return cls(0, math.nan, math.nan, math.nan, math.nan)
        mean = math.fsum(ordered) / len(ordered)
        return cls(len(ordered), mean, percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1])


class Tally(NamedTuple):
    """How requests ended. `errors` are explicit ones other than out-of-memory."""

    requests: int
    answered: int
    oom: int
    errors: int
    lost: int

    @classmethod
    def of(cls, records: Iterable[Record]) -> Tally:
        requests = answered = oom = errors = lost = 0
        for record in records:
            requests += 1
            if record.outcome == "answered":
                answered += 1
            elif record.out_of_memory:
                oom += 1
            elif record.outcome == "error":
                errors += 1
            else:
                lost += 1
        return cls(requests, answered, oom, errors, lost)

    @property
    def oom_rate(self) -> float:
        return self.oom / self.requests if self.requests else math.nan

    @property
    def error_rate(self) -> float:
        """All that was not answered well."""
        return 1 - self.answered / self.requests if self.requests else math.nan


class NodeShare(NamedTuple):
    """What one node did, by its own account."""

    name: str
    requests: int
    finished: int
    oom: int
    useful_seconds: float
    """Work of the answers that reached their client."""
    busy_seconds: float


def by_kind(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by kind of request, in the order of their first appearance."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record.kind, []).append(record)
    return kinds


def latencies_of(records: Iterable[Record]) -> Latencies:
    """Latencies of the good answers; what errors took says nothing about service."""
    return Latencies.of(record.latency for record in records if record.outcome == "answered")


def duration(records: Iterable[Record]) -> float:
    """Seconds from the beginning of the load to the last end."""
    return max((record.end for record in records if record.end is not None), default=0.0)


def useful_share(nodes: Sequence[NodeShare], seconds: float) -> float:
    """Useful GPU seconds of GPU seconds that there were."""
    available = len(nodes) * seconds
    return sum(node.useful_seconds for node in nodes) / available if available > 0 else math.nan


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


def figures(records: Sequence[Record], nodes: Sequence[NodeShare]) -> dict[str, Any]:
    """The figures that every scene has. Seconds are those of the emulated nodes."""
    tally = Tally.of(records)
    latencies = latencies_of(records)
    seconds = duration(records)
    return {
        **tally._asdict(),
        "oom_rate": tally.oom_rate,
        "error_rate": tally.error_rate,
        "latency_mean": latencies.mean,
        "latency_p50": latencies.p50,
        "latency_p99": latencies.p99,
        "seconds": seconds,
        "useful_gpu_seconds": sum(node.useful_seconds for node in nodes),
        "useful_gpu_share": useful_share(nodes, seconds),
        "node_fairness": jain([node.useful_seconds for node in nodes]),
    }


def kind_figures(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Tally and latencies of each kind of request."""
    return {
        kind: {**Tally.of(those)._asdict(), "oom_rate": Tally.of(those).oom_rate, **_named(latencies_of(those))}
        for kind, those in by_kind(records).items()
    }


def _named(latencies: Latencies) -> Mapping[str, float]:
    return {"latency_mean": latencies.mean, "latency_p50": latencies.p50, "latency_p99": latencies.p99}
