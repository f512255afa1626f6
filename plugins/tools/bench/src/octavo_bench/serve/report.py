"""A load's results as lines for people and as a record for programs.

Owns: the layout of both. Must never know: HTTP, how anything was measured.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from octavo_bench.figures import Distribution, duration, number, percentile_name
from octavo_bench.output import counted
from octavo_bench.serve.exchange import Exchange
from octavo_bench.serve.load import Offered
from octavo_bench.serve.results import Results

FORMAT = 1
"""Of the JSON; another number means that fields have changed their meaning or are gone."""
_TIMES = {"ttft": "first text", "tpot": "per token", "itl": "between chunks", "e2e": "end to end"}
_SEVERAL = 1.05
"""Output tokens for each chunk with text, from which on chunks are said to carry several: the token that ends an
answer has no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was asked for."""

    base_url: str
    endpoint: str
    model: str
    dataset: str
    prompt_format: str
    """`ids`, `text` or `file`."""
    seed: int
    request_rate: float
    """Infinite, which is null in JSON: all at once."""
    burstiness: float
    max_concurrency: int | None
    timeout: float
    num_warmups: int
    temperature: float
    ignore_eos: bool
    extra_body: Mapping[str, Any]
    percentiles: tuple[float, ...]
    goals: Mapping[str, float]
    """Seconds."""


def as_record(setting: Setting, offered: Offered, results: Results) -> dict[str, Any]:
    """Everything that was measured. Times are in seconds; None for what there is not."""
    return {
        "format": FORMAT,
        "command": "serve",
        "versions": {name: metadata.version(name) for name in ("octavo", "octavo-bench", "aiohttp")},
        "platform": platform.platform(),
        "setting": asdict(setting),
        "interrupted": offered.interrupted,
        "results": _results_record(results),
        "client": _client_record(results),
        "requests": [_request_record(e, offered.start) for e in offered.exchanges],
    }


def _results_record(r: Results) -> dict[str, Any]:
    return {
        "seconds": r.seconds,
        "num_requests": r.num_requests,
        "num_completed": r.num_completed,
        "num_failed": r.num_failed,
        "num_unfinished": r.num_unfinished,
        "num_unsent": r.num_unsent,
        "failures": dict(r.failures),
        "num_without_usage": r.num_without_usage,
        "num_without_text": r.num_without_text,
        "peak_concurrency": r.peak_concurrency,
        "num_input_tokens": r.num_input_tokens,
        "num_cached_tokens": r.num_cached_tokens,
        "num_output_tokens": r.num_output_tokens,
        "tokens_per_chunk": r.tokens_per_chunk,
        "requests_per_second": r.rate(r.num_completed),
        "input_tokens_per_second": r.rate(r.num_input_tokens),
        "output_tokens_per_second": r.rate(r.num_output_tokens),
        "num_good": r.num_good,
        "goodput": r.rate(r.num_good),
        **{name: _numbers(times) for name, times in r.times.items()},
    }


def _client_record(results: Results) -> dict[str, Any]:
    client = results.client
    return {
        "sent_late": _numbers(client.sent_late),
        "held_back": _numbers(client.held_back),
        "loop_delay": _numbers(client.loop_delay),
        "cpu_share": client.cpu_share,
        "saturated": client.saturated,
    }


def _request_record(e: Exchange, start: float) -> dict[str, Any]:
    return {
        "arrival": e.arrival,
        "due": None if e.due is None else e.due - start,
        "sent": None if e.sent is None else e.sent - start,
        "end": None if e.end is None else e.end - start,
        "ttft": e.ttft,
        "tpot": e.tpot,
        "e2e": e.e2e,
        "itl": e.itl,
        "num_text_chunks": len(e.text_times),
        "max_tokens": e.max_tokens,
        "num_input_tokens": e.num_input_tokens,
        "num_cached_tokens": e.num_cached_tokens,
        "num_output_tokens": e.num_output_tokens,
        "finish_reason": e.finish_reason,
        "failure": None if e.failure is None else asdict(e.failure),
    }


def _numbers(distribution: Distribution | None) -> dict[str, float] | None:
    return distribution.record() if distribution else None


def lines_of(setting: Setting, results: Results, interrupted: bool) -> list[str]:
    lines = [*_heading(setting, results), ""]
    if interrupted:
        rest = f"{results.num_unfinished:,} were under way, {results.num_unsent:,} not sent"
        lines.append(f"{'interrupted':<16}after {duration(results.seconds)}: {rest}")
    lines += [*_counts(setting, results), "", *_table(results, setting.percentiles)]
    return [*lines, *_notes(results), "", *_client_lines(results)]


def _heading(s: Setting, results: Results) -> list[str]:
    rate = (
        "all at once" if math.isinf(s.request_rate) else f"{s.request_rate:g} requests/s, burstiness {s.burstiness:g}"
    )
    cap = f", at most {s.max_concurrency} in flight" if s.max_concurrency else ""
    prompts = "" if s.prompt_format == "file" else f", prompts as {s.prompt_format}"
    return [
        f"{counted(results.num_requests, 'request')} to {s.base_url} ({s.endpoint}), model {s.model}",
        f"{s.dataset}, seed {s.seed}{prompts}; {rate}{cap}; {s.num_warmups} before to warm up",
    ]


def _counts(s: Setting, r: Results) -> list[str]:
    rate = r.rate(r.num_completed) or 0.0
    peak = f"at most {r.peak_concurrency:,} in flight"
    lines = [
        f"{'completed':<16}{counted(r.num_completed, 'request')} in {duration(r.seconds)}; {number(rate)}/s; {peak}"
    ]
    label = "failed"
    for kind, count in r.failures.items():
        lines.append(f"{label:<16}{count:,} of kind {kind}, the first: {r.examples[kind]}")
        label = ""
    cached = f", {r.num_cached_tokens:,} of them cached" if r.num_cached_tokens is not None else ""
    lines.append(f"{'input':<16}{_tokens(r, r.num_input_tokens, cached)}")
    lines.append(f"{'output':<16}{_tokens(r, r.num_output_tokens)}")
    if r.num_good is not None:
        goals = ", ".join(f"{name} {number(limit * 1e3)}" for name, limit in s.goals.items())
        good = r.rate(r.num_good) or 0.0
        lines.append(f"{'goodput':<16}{number(good)} requests/s: {r.num_good:,} with at most {goals} ms")
    return lines


def _tokens(r: Results, count: int | None, more: str = "") -> str:
    if count is None:
        return "unknown: no request completed with a usage in its stream"
    return f"{count:,} tokens{more}; {number(r.rate(count) or 0.0)}/s"


def _table(results: Results, percentages: tuple[float, ...]) -> list[str]:
    names = ["mean", *map(percentile_name, percentages)]
    lines = [f"{'':<24}{''.join(f'{name:>12}' for name in names)}"]
    for name, label in _TIMES.items():
        times = results.times[name]
        values = [times.mean, *times.percentiles.values()] if times else []
        cells = "".join(f"{number(value * 1e3):>12}" for value in values) or f"{'none':>12}"
        lines.append(f"{f'{label} ({name.upper()})':<24}{cells}{' ms' if values else ''}")
    return lines


def _notes(r: Results) -> list[str]:
    notes = []
    if r.tokens_per_chunk is not None and r.tokens_per_chunk > _SEVERAL:
        notes.append(
            f"chunks carry {r.tokens_per_chunk:.2f} tokens on average: ITL is from chunk to chunk, TPOT for each token"
        )
    if r.num_without_usage:
        notes.append(
            f"the server gave no usage for {counted(r.num_without_usage, 'request')}: no tokens and no TPOT of these"
        )
    if r.num_without_text:
        notes.append(f"no text came for {counted(r.num_without_text, 'request')}: no TTFT and no TPOT of these")
    return notes


def _client_lines(r: Results) -> list[str]:
    client = r.client
    parts = [f"{client.cpu_share:.0%} of a core"]
    if client.sent_late:
        parts.append(f"requests sent late by {_mean_and_most(client.sent_late)}")
    if client.loop_delay:
        parts.append(f"event loop by {_mean_and_most(client.loop_delay)}")
    lines = [f"{'client':<16}{'; '.join(parts)}"]
    if client.held_back:
        lines.append(f"{'':<16}--max-concurrency held requests back by {_mean_and_most(client.held_back)}")
    if client.saturated:
        lines.append(f"{'':<16}it did not keep up, so these times are its own in part: load less, or from elsewhere")
    return lines


def _mean_and_most(distribution: Distribution) -> str:
    return f"{duration(distribution.mean)} (at most {duration(distribution.max)})"
