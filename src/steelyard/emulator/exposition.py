"""Writes the Prometheus text format 0.0.4. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """A cumulative histogram with fixed upper bounds."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value


class Exposition:
    """Families are written in the order of the calls."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, type: str, help: str) -> None:
        self._lines.append(f"# HELP {name} {help}")
        self._lines.append(f"# TYPE {name} {type}")

    def sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._lines.append(f"{name}{_labels(labels)} {float(value)!r}")

    def histogram(self, name: str, help: str, labels: Mapping[str, str], histogram: Histogram) -> None:
        self.family(name, "histogram", help)
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            limit = "+Inf" if bound == float("inf") else repr(bound)
            self.sample(f"{name}_bucket", {**labels, "le": limit}, total)
        self.sample(f"{name}_sum", labels, histogram.sum)
        self.sample(f"{name}_count", labels, histogram.count)

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = []
    for name in sorted(labels):
        value = labels[name].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{value}"')
    return "{" + ",".join(pairs) + "}"
