"""How the benchmarks measure and report: interleaved runs, medians, tables.

Owns: the order of runs, statistics, output. Must never know: what is measured.

Timings on a shared machine drift. So whatever is compared runs in turn, in an order that is rotated each time, and
what is reported are ratios of medians, or medians of the ratios of each turn.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")

median = statistics.median


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """`items` in an order that gives each of them each place once in `len(items)` turns."""
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def paired_ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Each turn's value over that of `base` in the same turn."""
    return [mine / its for mine, its in zip(values, base, strict=True)]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` of all `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as needed; text to the left, everything else to the right."""
    texts = [list(header), *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    is_text = [all(isinstance(row[i], str) for row in rows) for i in range(len(header))]
    for cells in texts:
        padded = (c.ljust(w) if t else c.rjust(w) for c, w, t in zip(cells, widths, is_text, strict=True))
        print("  ".join(padded).rstrip())
    print(flush=True)


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items; a terminal is shown how far it is."""
    yield from tqdm(items, desc=what, leave=False, disable=None)


def write_json(path: str | None, result: dict[str, Any]) -> None:
    """The result with the machine that it was measured on; nothing without a path."""
    if path is None:
        return
    machine = {"platform": platform.platform(), "processor": platform.processor(), "python": platform.python_version()}
    Path(path).write_text(json.dumps({"machine": machine, **result}, indent=1, ensure_ascii=False), encoding="utf-8")
