"""How fast the engine is, reported every few seconds while it computes.

Owns: what is reported (`Throughput`), and when. Must never know: where reports go, how the engine works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.request import Request, RequestOutput
from octavo.spec import Observer
from octavo.step import StepStats
from octavo_openai.observation.metrics import EngineMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates since the report before, or since the first request after an idle time; all else as of the last step."""

    prompt_tokens_per_second: float
    """Prompt tokens that were computed, not those found in the prefix cache."""
    generation_tokens_per_second: float
    num_running: int
    """In sequences, as `num_waiting`."""
    num_waiting: int
    kv_cache_usage_percent: float
    prefix_cache_hit_percent: float | None
    """Prompt tokens found, of those looked up since the report before; None if none were looked up."""
    draft_acceptance_percent: float | None
    """Drafts accepted, of those verified since the report before; None if none were verified."""


class ThroughputReporter(Observer):
    """Calls `report` every `interval` seconds while there are steps, and once more after the last one.

    The first step after a report sets the timer of the next report, so an idle engine has no timer.
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        interval: float,
        report: Callable[[Throughput], None],
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`metrics` must observe each step before this does; `call_later` is the event loop's."""
        self._metrics, self._interval = metrics, interval
        self._report, self._call_later, self._clock = report, call_later, clock
        self._totals = metrics.totals()
        self._since = self._last_step = clock()
        self._stats: StepStats | None = None
        """Of the last step."""
        self._num_live = 0
        """Requests that have not ended; not all of them have had a step when they end."""
        self._has_timer = False

    def on_request(self, request: Request) -> None:
        if self._num_live == 0 and not self._has_timer:
            self._since = self._clock()
        self._num_live += 1

    def on_finished(self, output: RequestOutput) -> None:
        self._num_live -= 1

    def on_step(self, stats: StepStats) -> None:
        self._stats, self._last_step = stats, self._clock()
        if not self._has_timer:
            self._has_timer = True
            self._call_later(self._interval, self._make_report)

    def shutdown(self) -> None:
        self._make_report()

    def _make_report(self) -> None:
        if not self._has_timer:  # nothing is new: there was no step, or the shutdown came before the timer
            return
        assert self._stats is not None, "a step sets the timer"
        self._has_timer = False
        totals, before = self._metrics.totals(), self._totals
        seconds = self._last_step - self._since  # not until now: the engine may be idle since
        self._totals, self._since = totals, self._last_step
        self._report(
            Throughput(
                prompt_tokens_per_second=round((totals.prompt_tokens - before.prompt_tokens) / seconds, 1),
                generation_tokens_per_second=round((totals.generation_tokens - before.generation_tokens) / seconds, 1),
                num_running=self._stats.num_running,
                num_waiting=self._stats.num_waiting,
                kv_cache_usage_percent=_percent(self._stats.num_used_blocks, self._stats.num_blocks) or 0.0,
                prefix_cache_hit_percent=_percent(
                    totals.prefix_hits - before.prefix_hits, totals.prefix_queries - before.prefix_queries
                ),
                draft_acceptance_percent=_percent(
                    totals.accepted_tokens - before.accepted_tokens, totals.draft_tokens - before.draft_tokens
                ),
            )
        )


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None
