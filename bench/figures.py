"""The arithmetic of the bench: samples, medians, percentiles, paired ratios, and the goals they are held to."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """What one measure gave for one proxy in one round: figures by name, or the problem that prevented them."""

    measure: str
    proxy: str
    round: int
    figures: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    problem: str | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the least value that at least `share` (0..1] of the values do not exceed."""
    if not values:
        raise ValueError("no values, so no percentile")
    if not 0 < share <= 1:
        raise ValueError(f"share {share} is not in (0, 1]")
    return sorted(values)[math.ceil(share * len(values)) - 1]


class Results:
    """All samples of a run. A sample with errors counts: its figures are kept and the errors shown beside."""

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples = list(samples)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)

    def by_round(self, measure: str, proxy: str, figure: str) -> dict[int, float]:
        """The values of one figure, by round."""
        return {
            sample.round: sample.figures[figure]
            for sample in self.samples
            if (sample.measure, sample.proxy) == (measure, proxy) and figure in sample.figures
        }

    def median(self, measure: str, proxy: str, figure: str) -> float | None:
        """Median over the rounds, or None where nothing was measured."""
        values = self.by_round(measure, proxy, figure)
        return statistics.median(values.values()) if values else None

    def ratio(self, measure: str, proxy: str, figure: str, baseline: str) -> float | None:
        """Median over the rounds of `proxy` / `baseline` of the same round.

        Paired by round because both sides of a pair saw the machine in the same minute. None where no round
        has both, or where the baseline's median is not positive (an added latency can be below zero).
        """
        pairs = self._pairs(measure, proxy, figure, baseline)
        if not pairs or statistics.median(under for _, under in pairs) <= 0:
            return None
        ratios = [over / under for over, under in pairs if under > 0]
        return statistics.median(ratios)

    def difference(self, measure: str, proxy: str, figure: str, baseline: str) -> float | None:
        """Median over the rounds of `proxy` - `baseline` of the same round, or None."""
        pairs = self._pairs(measure, proxy, figure, baseline)
        return statistics.median(over - under for over, under in pairs) if pairs else None

    def errors(self, measure: str, proxy: str) -> int:
        """Answers that were not 200 and connections that broke, over all rounds."""
        return sum(s.errors for s in self.samples if (s.measure, s.proxy) == (measure, proxy))

    def problem_count(self, measure: str, proxy: str) -> int:
        """How many samples of a proxy could not be taken."""
        return sum((sample.measure, sample.proxy) == (measure, proxy) for sample in self.problems())

    def problems(self) -> list[Sample]:
        """The samples that could not be taken."""
        return [sample for sample in self.samples if sample.problem is not None]

    def _pairs(self, measure: str, proxy: str, figure: str, baseline: str) -> list[tuple[float, float]]:
        over = self.by_round(measure, proxy, figure)
        under = self.by_round(measure, baseline, figure)
        return [(over[r], under[r]) for r in sorted(over.keys() & under.keys())]


class How(enum.Enum):
    """How a figure of Steelyard is read before it is held to its limits."""

    ALONE = "alone"
    RATIO = "ratio"
    DIFFERENCE = "difference"


class Verdict(enum.Enum):
    """What became of a limit."""

    GOAL = "goal met"
    MUST = "must met, goal not"
    MET = "met"
    MISSED = "NOT met"
    NOT_COMPARABLE = "not comparable"
    NOT_MEASURED = "not measured"


BATCHING_TOLERATED = 1.25


@dataclass(frozen=True)
class Limit:
    """One number of issue 2: a figure of Steelyard, and what it may be at most."""

    title: str
    measure: str
    figure: str
    how: How
    must: float
    goal: float | None = None
    baseline: str = ""
    unit: str = ""
    batching: str = ""
    """A figure of the same measure that says how many units were handled at a time. Handling several at once is
    cheaper: where the subject did clearly more of it than the baseline, the two cannot be compared."""

    def reached(self, results: Results, subject: str) -> float | None:
        """The value that is held to the limit, or None where it was not measured."""
        if self.how is How.RATIO:
            return results.ratio(self.measure, subject, self.figure, self.baseline)
        if self.how is How.DIFFERENCE:
            return results.difference(self.measure, subject, self.figure, self.baseline)
        return results.median(self.measure, subject, self.figure)

    def verdict(self, results: Results, subject: str) -> Verdict:
        """Whether it is kept. A run in which requests failed proves nothing: that is NOT met, too."""
        value = self.reached(results, subject)
        if value is None:
            return Verdict.NOT_MEASURED
        if value > self.must or results.errors(self.measure, subject):
            return Verdict.MISSED
        if self.batching:
            batched = results.ratio(self.measure, subject, self.batching, self.baseline)
            if batched is not None and batched > BATCHING_TOLERATED:
                return Verdict.NOT_COMPARABLE
        if self.goal is None:
            return Verdict.MET
        return Verdict.GOAL if value <= self.goal else Verdict.MUST


LIMITS = (
    Limit("CPU per request, beside nginx", "plain", "cpu_us", How.RATIO, 3.0, 2.0, "nginx", "x"),
    Limit("CPU per request, beside vllm-router", "plain", "cpu_us", How.RATIO, 0.5, None, "vllm-router", "x"),
    Limit("CPU per SSE event, beside nginx", "stream", "cpu_us", How.RATIO, 1.6, 1.3, "nginx", "x", "events_per_read"),
    Limit("resident bytes of an idle stream", "idle", "stream_bytes", How.ALONE, 16_000, None, "", "B"),
    Limit("a decision at 64 nodes", "decision", "us_64", How.ALONE, 25, None, "", "us"),
    Limit("a decision at 1,000 nodes", "decision", "us_1000", How.ALONE, 50, None, "", "us"),
    Limit("longest stall, less nginx's", "bodies", "longest_ms", How.DIFFERENCE, 20, None, "nginx", "ms"),
)
