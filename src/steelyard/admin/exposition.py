"""The text format of Prometheus (0.0.4).

Written here and not by prometheus_client, whose writer was measured at about 30 us a line: a fleet of 1,000 nodes has
75,000 lines, and they are asked for every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf, isfinite

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]


def escaped(value: str) -> str:
    """A label's value as it stands between the quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A sample's value."""
    if isfinite(value):
        return repr(value)
    return "+Inf" if value == inf else "-Inf" if value == -inf else "NaN"


def header(name: str, kind: str, text: str) -> str:
    """The HELP and TYPE lines of a metric."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


class LabelWriter:
    """Writes label sets, each once: most of them stand in many lines of one scrape."""

    def __init__(self) -> None:
        self._written: dict[tuple[Labels, Labels], str] = {}

    def pairs(self, names: Labels, values: Labels) -> str:
        """`route="chat",node="gpu-1"`, without braces; empty where there are no labels."""
        key = (names, values)
        written = self._written.get(key)
        if written is None:
            pairs = [f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True)]
            written = self._written[key] = ",".join(pairs)
        return written


def samples(name: str, labels: Labels, rows: Iterable[tuple[Labels, float]], writer: LabelWriter) -> Iterable[str]:
    """The lines of a counter or a gauge."""
    pairs = writer.pairs
    for values, value in rows:
        written = value if type(value) is int else number(value)
        yield f"{name}{{{pairs(labels, values)}}} {written}\n" if labels else f"{name} {written}\n"


class HistogramLines:
    """Writes histograms of one name and one set of bounds, each in one step: the text between is made once."""

    def __init__(self, name: str, labels: Labels, bounds: Sequence[float], writer: LabelWriter) -> None:
        self._labels = labels
        self._writer = writer
        comma, braces = (",", "{\0}") if labels else ("", "")
        buckets = [f'{name}_bucket{{\0{comma}le="{bound}"}} %d\n' for bound in [*map(number, bounds), "+Inf"]]
        self._text = "".join([*buckets, f"{name}_sum{braces} %s\n{name}_count{braces} %d\n"])

    def lines(self, values: Labels, counts: Sequence[int], total: float) -> str:
        """The lines of one histogram: `counts` by bound, not cumulated, the last without bound; `total` is the sum."""
        cumulated = tuple(accumulate(counts))
        pairs = self._writer.pairs(self._labels, values).replace("%", "%%")
        return self._text.replace("\0", pairs) % (*cumulated, number(total), cumulated[-1])
