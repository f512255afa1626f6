"""A load as a picture: every request on a line of time, and how its times are distributed.

Owns: the SVG. Must never know: HTTP, how anything was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from octavo_bench.figures import number, quantile
from octavo_bench.serve.load import Offered
from octavo_bench.serve.results import times_of

_WAITING, _ANSWERING, _FAILED = "#b8c4cc", "#1f6f8b", "#b5403a"
_INK, _GRID = "#333333", "#dddddd"
_WIDTH, _HEIGHT = 960, 530
_PANELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
_SHOWN = 0.99
"""The distributions are drawn up to this quantile, or one slow request would leave no room for all others."""
_POINTS = 200
"""Of one curve."""

Box = tuple[float, float, float, float]
"""Left, top, width and height."""


def draw(heading: Sequence[str], offered: Offered) -> str:
    """The text of an SVG file with at most two lines of `heading`."""
    titles = [_text(60, 18 + 16 * i, line, size=12) for i, line in enumerate(heading)]
    parts = [*titles, *_timeline((60, 80, 870, 225), offered)]
    width = 178.0
    for i, name in enumerate(_PANELS):
        parts += _distribution((60 + i * (width + 53), 380, width, 120), name, times_of(offered.exchanges, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" fill="{_INK}">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _timeline(box: Box, offered: Offered) -> list[str]:
    """One bar for each request that was sent: until its first text, from then to its end, or until it failed."""
    left, top, width, height = box
    end = max(offered.seconds, 1e-9)
    sent = [e for e in offered.exchanges if e.sent is not None]
    thick = height / max(1, len(sent))
    bars: dict[str, list[str]] = {_WAITING: [], _ANSWERING: [], _FAILED: []}

    def bar(colour: str, row: int, start: float, stop: float) -> None:
        x = left + (start - offered.start) / end * width
        bars[colour].append(f"M{x:.1f} {top + (row + 0.5) * thick:.2f}h{(stop - start) / end * width:.1f}")

    for row, e in enumerate(sent):
        assert e.sent is not None
        stop = e.end if e.end is not None else offered.start + offered.seconds
        if e.failure is not None:
            bar(_FAILED, row, e.sent, stop)
            continue
        first = e.text_times[0] if e.text_times else stop
        bar(_WAITING, row, e.sent, first)
        bar(_ANSWERING, row, first, stop)
    paths = [
        f'<path d="{"".join(found)}" stroke="{colour}" stroke-width="{max(0.3, thick * 0.8):.2f}"/>'
        for colour, found in bars.items()
        if found
    ]
    legend = ((_WAITING, "until its first text"), (_ANSWERING, "until its end"), (_FAILED, "failed"))
    keys = [
        f'<rect x="{left + 250 + i * 150:.0f}" y="{top - 20:.0f}" width="10" height="10" fill="{colour}"/>'
        + _text(left + 265 + i * 150, top - 11, what)
        for i, (colour, what) in enumerate(legend)
    ]
    caption = _text(left, top - 11, f"{len(sent):,} requests over time, s", weight="bold")
    return [caption, *keys, *_axis(box, end, 10), *paths]


def _distribution(box: Box, name: str, times: Sequence[float]) -> list[str]:
    """Which share of the times is at most so many milliseconds."""
    left, top, width, height = box
    title = f"{_PANELS[name]}, ms"
    if not times:
        return [_text(left, top - 24, title, weight="bold"), _text(left, top - 9, "none")]
    ordered = sorted(times)
    most = max(quantile(ordered, _SHOWN) * 1e3, 1e-6)
    steps = min(_POINTS, len(ordered))
    points = [(ordered[0], 0.0)]
    for share in (_SHOWN * i / steps for i in range(1, steps + 1)):
        points.append((ordered[math.ceil(share * len(ordered)) - 1], share))
    curve = " ".join(f"{left + x * 1e3 / most * width:.1f},{top + height * (1 - y):.1f}" for x, y in points)
    told = f"median {number(median(ordered) * 1e3)}, p99 {number(quantile(ordered, 0.99) * 1e3)}"
    marks = [_text(left - 6, top + height * (1 - share) + 4, f"{share:.0%}", anchor="end") for share in (0.5, 1.0)]
    return [
        _text(left, top - 24, title, weight="bold"),
        _text(left, top - 9, told),
        *_axis(box, most, 4),
        *marks,
        f'<polyline points="{curve}" fill="none" stroke="{_ANSWERING}" stroke-width="1.5"/>',
    ]


def _axis(box: Box, most: float, num_steps: int) -> Iterable[str]:
    """The box's ground line, with a grid at round numbers from 0 to `most`, of about `num_steps`."""
    left, top, width, height = box
    yield f'<path d="M{left} {top + height}h{width}" stroke="{_INK}" stroke-width="0.8"/>'
    step = _round_step(most / num_steps)
    for i in range(int(most / step * (1 + 1e-9)) + 1):
        x = left + i * step / most * width
        yield f'<path d="M{x:.1f} {top}v{height}" stroke="{_GRID}" stroke-width="0.6"/>'
        yield _text(x, top + height + 14, f"{i * step:g}", anchor="middle")


def _round_step(rough: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((m * power for m in (1, 2, 5) if m * power >= rough), 10 * power)


def _text(x: float, y: float, text: str, *, size: int = 10, anchor: str = "start", weight: str = "normal") -> str:
    look = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'
