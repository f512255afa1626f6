"""Several measurements of one thing in a few numbers, and numbers as people read them.

Owns: statistics and units. Must never know: what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Spread:
    """What repeats of a measurement gave."""

    median: float
    min: float
    max: float
    p90: float
    p99: float
    values: tuple[float, ...]
    """In the order in which they were measured."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(
            statistics.median(values),
            min(values),
            max(values),
            quantile(values, 0.9),
            quantile(values, 0.99),
            tuple(values),
        )

    def show(self, unit: str, tail: bool = False) -> str:
        """`12.3 ms (11.9 to 14.0)`, and with `tail` the percentiles of the slow end."""
        percentiles = f"; p90 {number(self.p90)}, p99 {number(self.p99)}" if tail else ""
        spread = f" ({number(self.min)} to {number(self.max)}{percentiles})" if len(self.values) > 1 else ""
        return f"{number(self.median)} {unit}{spread}"

    def times(self, factor: float) -> Spread:
        return Spread.of([value * factor for value in self.values])


@dataclass(frozen=True, slots=True)
class Distribution:
    """Many measurements of one thing, without the measurements themselves."""

    mean: float
    min: float
    max: float
    percentiles: Mapping[float, float]
    """By percentage; the fiftieth is the median, others are by nearest rank."""

    @classmethod
    def of(cls, values: Sequence[float], percentages: Sequence[float]) -> Distribution | None:
        """None if there are no values."""
        if not values:
            return None
        found = {p: statistics.median(values) if p == 50 else quantile(values, p / 100) for p in percentages}
        return cls(statistics.fmean(values), min(values), max(values), found)

    def record(self) -> dict[str, float]:
        named = {percentile_name(p): value for p, value in self.percentiles.items()}
        return {"mean": self.mean, **named, "min": self.min, "max": self.max}


def percentile_name(percentage: float) -> str:
    """`median`, `p90`, `p99.9`."""
    return "median" if percentage == 50 else f"p{percentage:g}"


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` of all `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = math.ceil(q * len(ordered) - 1e-9)  # 0.07 * 100 is a little more than 7
    return ordered[max(0, rank - 1)]


def number(value: float) -> str:
    """Four significant digits, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(max(digits, 0), 6)}f}"


def duration(seconds: float) -> str:
    """`66.44 ms`: seconds, or the part of one that leaves a number of at least 1."""
    factor, unit = next(((f, u) for f, u in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * f >= 1), (1e6, "µs"))
    return f"{number(seconds * factor)} {unit}"


def amount(value: float, unit: str) -> str:
    """`6.897 TB`: a number with a decimal prefix of the unit."""
    factor, prefix = next(((f, p) for f, p in _PREFIXES if value >= f), (1.0, ""))
    return f"{number(value / factor)} {prefix}{unit}"
