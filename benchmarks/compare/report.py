"""From results of runs to medians, ratios and a table in Markdown.

Rounds are paired: a ratio is the median over rounds of one engine's value over another's of the same round, so that a
machine that slows down for a while changes it little.

Owns: what is reported. Must never know: how anything is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    title: str
    unit: str
    higher_is_better: bool
    workload: str | None = None
    """None: of the whole process."""

    def value(self, result: Mapping[str, Any]) -> float | None:
        """From the result of one process; None if that workload was not run."""
        if self.workload is None:
            return result["start_seconds"] if self.name == "start" else result["peak_bytes"] / 2**20
        run = result["workloads"].get(self.workload)
        if run is None:
            return None
        if self.unit == "ms":
            return run["first_token_seconds"] * 1000
        if self.name == "W2 decode":
            return run["decode_tokens_per_second"]
        return (run["num_input_tokens"] + run["num_output_tokens"]) / run["seconds"]


METRICS = (
    Metric("W1", "W1: 64 mixed requests, in + out", "tokens/s", True, "W1"),
    Metric("W3", "W3: 64 requests, shared prefix, in + out", "tokens/s", True, "W3"),
    Metric("W4", "W4: 8 mixed requests, in + out", "tokens/s", True, "W4"),
    Metric("W2 first token", "W2: 1 request, first token", "ms", False, "W2"),
    Metric("W2 decode", "W2: 1 request, decoding", "tokens/s", True, "W2"),
    Metric("start", "Process start to first token", "s", False),
    Metric("memory", "Peak memory", "MiB", False),
)


@dataclass(slots=True)
class Contestant:
    """An engine in one precision, with what was measured."""

    name: str
    title: str
    precision: str
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By round."""
    unavailable: str | None = None
    """Why it could not be run, or not to the end."""
    notes: list[str] = field(default_factory=list)

    def values(self, metric: Metric) -> dict[int, float]:
        found = {turn: metric.value(result) for turn, result in self.results.items()}
        return {turn: value for turn, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better; above 1 the first is ahead."""

    median: float
    lowest: float
    highest: float


def ratio(metric: Metric, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Ratio | None:
    """Over the rounds that both have; None without any."""
    rounds = ours.keys() & theirs.keys()
    quotients = [ours[t] / theirs[t] if metric.higher_is_better else theirs[t] / ours[t] for t in rounds]
    return Ratio(median(quotients), min(quotients), max(quotients)) if quotients else None


def faults(result: Mapping[str, Any], asked: Mapping[str, Sequence[int]]) -> list[str]:
    """What an engine did not do of what it was asked: numbers of output tokens by workload and request."""
    found = []
    for name, counts in asked.items():
        given = [len(tokens) for tokens in result["workloads"][name]["token_ids"]]
        if given != list(counts):
            found.append(f"{name} gave {sum(given):,} of {sum(counts):,} tokens")
    return found


def same_first_tokens(result: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[int, int]:
    """How many requests begin with the same token as in `reference`, and how many there are.

    First tokens follow from the prompt alone; if most differ, the two did not run the same model.
    """
    pairs = [
        (ours[:1], theirs[:1])
        for name, run in result["workloads"].items()
        for ours, theirs in zip(run["token_ids"], reference["workloads"][name]["token_ids"], strict=True)
    ]
    return sum(ours == theirs for ours, theirs in pairs), len(pairs)


def summary(subject: Contestant, peers: Sequence[Contestant]) -> dict[str, Any]:
    """Medians of every contestant by metric, and the subject's ratio to every peer, the best peer named."""
    by_metric: dict[str, Any] = {}
    for metric in METRICS:
        medians = {c.name: median(v) for c in (subject, *peers) if (v := list(c.values(metric).values()))}
        ratios = {p.name: r for p in peers if (r := ratio(metric, subject.values(metric), p.values(metric)))}
        if medians:
            best = min(ratios, key=lambda name: ratios[name].median) if ratios else None
            by_metric[metric.name] = {"medians": medians, "ratios": ratios, "best_peer": best}
    return by_metric


def table(subject: Contestant, peers: Sequence[Contestant]) -> str:
    """Two tables in Markdown: medians of everybody, and ratios to each peer with their range over rounds."""
    found = summary(subject, peers)
    ran = [c for c in (subject, *peers) if c.results]
    rivals = [c for c in ran if c is not subject] if subject.results else []
    metrics = [metric for metric in METRICS if metric.name in found]
    medians = [
        [f"{m.title} ({m.unit})", *(_number(found[m.name]["medians"].get(c.name)) for c in ran)] for m in metrics
    ]
    lines = [*_rows(["median", *map(heading, ran)], medians), ""]
    if rivals:
        ratios = [[m.title, *(_ratio_cell(found[m.name], c.name) for c in rivals)] for m in metrics]
        lines += ["How many times better Octavo is (lowest–highest over rounds); the best peer in bold:", ""]
        lines += [*_rows(["ratio of paired rounds, median", *map(heading, rivals)], ratios), ""]
    for contestant in (subject, *peers):
        if contestant.unavailable:
            lines.append(f"- {heading(contestant)}: unavailable: {contestant.unavailable}")
        lines += [f"- {heading(contestant)}: {note}" for note in contestant.notes]
    return "\n".join(lines).rstrip() + "\n"


def heading(contestant: Contestant) -> str:
    return f"{contestant.title} {contestant.precision}"


def _ratio_cell(found: Mapping[str, Any], name: str) -> str:
    if name not in found["ratios"]:
        return "–"
    r: Ratio = found["ratios"][name]
    text = f"{r.median:.2f}"
    return f"{f'**{text}**' if name == found['best_peer'] else text} ({r.lowest:.2f}–{r.highest:.2f})"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in header[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]
