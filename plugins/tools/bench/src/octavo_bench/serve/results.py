"""What a load came to.

Owns: which figures there are and what counts into them. Must never know: HTTP, how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from octavo_bench.figures import Distribution, quantile
from octavo_bench.serve.exchange import Exchange
from octavo_bench.serve.load import Offered

GOALS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
"""What a goal is called, and the time of an exchange that it is about."""
_SATURATED_CPU = 0.9
"""Of one core: an event loop has no more."""
_LATE_LOOP = 0.1
"""Of the median TTFT: a loop that wakes so late tells times that are wrong by as much."""
_TIMER = 0.005
"""Seconds that a timer may be late on any system; data that arrives wakes the loop sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLag:
    """Whether the client kept up. Seconds."""

    sent_late: Distribution | None
    """After the request was due: it had arrived, and no limit of concurrency held it back."""
    held_back: Distribution | None
    """After its arrival, by the limit of concurrency. None if nothing was held back, or all are to be sent at once."""
    loop_delay: Distribution | None
    cpu_share: float
    """Of one core."""
    saturated: bool
    """Then the times are the client's own as much as the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rates and times are of requests that completed. Seconds; None for what nothing is known of."""

    seconds: float
    num_requests: int
    num_completed: int
    num_unfinished: int
    """In flight when the load was interrupted."""
    num_unsent: int
    failures: Mapping[str, int]
    """Failed requests by kind."""
    examples: Mapping[str, str]
    """The first message of each kind."""
    peak_concurrency: int
    num_without_usage: int
    """Completed, but the server counts no tokens: they are missing in all numbers of tokens."""
    num_without_text: int
    """Completed, but no chunk had text: they are missing in TTFT, TPOT and ITL."""
    num_input_tokens: int | None
    num_cached_tokens: int | None
    num_output_tokens: int | None
    tokens_per_chunk: float | None
    """Output tokens over chunks with text."""
    num_good: int | None
    """Completed within all goals; None without goals."""
    times: Mapping[str, Distribution | None]
    """`ttft`, `tpot`, `itl`, `e2e`."""
    client: ClientLag

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    def rate(self, count: int | None) -> float | None:
        """So many in the time of the load, a second."""
        return count / self.seconds if count is not None and self.seconds > 0 else None


def results_of(offered: Offered, percentages: Sequence[float], goals: Mapping[str, float]) -> Results:
    """`goals`: for some of `GOALS`, the most seconds that a good request takes."""
    exchanges = offered.exchanges
    done = [e for e in exchanges if e.completed]
    counted = [e for e in done if e.num_output_tokens is not None]
    failures: dict[str, int] = {}
    examples: dict[str, str] = {}
    for failure in (e.failure for e in exchanges if e.failure is not None):
        failures[failure.kind] = failures.get(failure.kind, 0) + 1
        examples.setdefault(failure.kind, failure.message)
    num_chunks = sum(len(e.text_times) for e in counted)
    num_output_tokens = _sum([e.num_output_tokens for e in counted])
    return Results(
        seconds=offered.seconds,
        num_requests=len(exchanges),
        num_completed=len(done),
        num_unfinished=sum(e.sent is not None and e.end is None for e in exchanges),
        num_unsent=sum(e.sent is None for e in exchanges),
        failures=failures,
        examples=examples,
        peak_concurrency=offered.peak_concurrency,
        num_without_usage=len(done) - len(counted),
        num_without_text=sum(not e.text_times for e in done),
        num_input_tokens=_sum([e.num_input_tokens for e in counted]),
        num_cached_tokens=_sum([e.num_cached_tokens for e in counted]),
        num_output_tokens=num_output_tokens,
        tokens_per_chunk=num_output_tokens / num_chunks if num_chunks and num_output_tokens is not None else None,
        num_good=sum(is_good(e, goals) for e in done) if goals else None,
        times={name: Distribution.of(times_of(done, name), percentages) for name in ("ttft", "tpot", "itl", "e2e")},
        client=_client_lag(offered, percentages, times_of(done, "ttft")),
    )


def times_of(exchanges: Sequence[Exchange], name: str) -> list[float]:
    """All times of one of the kinds `ttft`, `tpot`, `itl` and `e2e` that completed exchanges have."""
    done = [e for e in exchanges if e.completed]
    if name == "itl":
        return [gap for e in done for gap in e.itl]
    return [value for e in done if (value := getattr(e, name)) is not None]


def is_good(exchange: Exchange, goals: Mapping[str, float]) -> bool:
    """Whether it keeps within all goals; an unknown time does not, but an answer of one token has no TPOT to miss."""
    for goal, limit in goals.items():
        value = getattr(exchange, GOALS[goal])
        no_tpot = goal == "tpot" and exchange.num_output_tokens is not None and exchange.num_output_tokens < 2
        if not no_tpot and (value is None or value > limit):
            return False
    return True


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _client_lag(offered: Offered, percentages: Sequence[float], ttft: Sequence[float]) -> ClientLag:
    exchanges, start = offered.exchanges, offered.start
    late = [e.sent - e.due for e in exchanges if e.sent is not None and e.due is not None]
    held = [e.due - (start + e.arrival) for e in exchanges if e.due is not None]
    scheduled = any(e.arrival for e in exchanges)
    cpu_share = offered.cpu_seconds / offered.seconds if offered.seconds > 0 else 0.0
    bound = max(_TIMER, _LATE_LOOP * median(ttft)) if ttft else _TIMER
    late_loop = bool(offered.loop_delays) and quantile(offered.loop_delays, 0.99) > bound
    return ClientLag(
        sent_late=Distribution.of(late, percentages),
        held_back=Distribution.of(held, percentages) if scheduled and any(held) else None,
        loop_delay=Distribution.of(offered.loop_delays, percentages),
        cpu_share=cpu_share,
        saturated=cpu_share > _SATURATED_CPU or late_loop,
    )
