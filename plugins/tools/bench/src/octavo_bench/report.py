"""A measurement as lines for people and as JSON for programs.

Owns: the layout of both, for the commands that start an engine. Must never know: engines, how anything was measured.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from statistics import median
from typing import Any

import torch

from octavo_bench.engine import Run
from octavo_bench.figures import Spread, amount, duration
from octavo_bench.measurement import Measurement
from octavo_bench.output import counted
from octavo_bench.output import publish as publish_record
from octavo_bench.roofline import Limit

FORMAT = 1
"""Of the JSON; another number means that fields have changed their meaning or are gone."""


def publish(
    measurement: Measurement, results: Mapping[str, Spread | None], lines: list[str], json_file: str | None
) -> None:
    """Print `lines` under a heading, and write everything to `json_file`, as `octavo_bench.output.publish` does."""
    text = [*_heading(measurement), *lines, *_roofline_lines(measurement)]
    publish_record(text, as_record(measurement, results), json_file)


def as_record(measurement: Measurement, results: Mapping[str, Spread | None]) -> dict[str, Any]:
    """Everything that was measured. Seconds, bytes, operations, and counts of tokens; None for what there is not."""
    m, workload = measurement, measurement.workload
    limits = [m.limit(run.steps) for run in m.runs]
    return {
        "format": FORMAT,
        "command": m.command,
        "versions": {name: metadata.version(name) for name in ("octavo", "octavo-bench", "torch")},
        "workload": {
            "dataset": workload.dataset,
            "seed": m.seed,
            "input_len": str(workload.input_len),
            "output_len": str(workload.output_len),
            "prefix_len": workload.prefix_len,
            "num_requests": len(m.requests),
            "num_input_tokens": m.runs[0].num_input_tokens,
            "num_output_tokens": m.runs[0].num_output_tokens,
        },
        "engine": m.description,
        "start_seconds": m.start_seconds,
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "num_threads": torch.get_num_threads(),
            **(asdict(m.machine) if m.machine else {"bytes_per_second": None, "operations_per_second": None}),
        },
        "num_warmups": m.num_warmups,
        "runs": [_run_record(run, limit) for run, limit in zip(m.runs, limits, strict=True)],
        "results": {name: asdict(spread) if spread else None for name, spread in results.items()},
        "roofline": _roofline_record(m, limits),
    }


def _run_record(run: Run, limit: Limit | None) -> dict[str, Any]:
    return {
        "seconds": run.seconds,
        "seconds_in_steps": sum(step.duration for step in run.steps),
        "num_output_tokens": run.num_output_tokens,
        "num_steps": len(run.steps),
        "num_scheduled_tokens": sum(step.num_scheduled_tokens for step in run.steps),
        "num_cached_tokens": sum(output.metrics.num_cached_tokens for output in run.outputs),
        "num_preemptions": sum(output.metrics.num_preemptions for output in run.outputs),
        "num_draft_tokens": sum(step.num_draft_tokens for step in run.steps),
        "num_accepted_tokens": sum(step.num_accepted_tokens for step in run.steps),
        "limit": asdict(limit) if limit else None,
    }


def _roofline_record(measurement: Measurement, limits: list[Limit | None]) -> dict[str, Any] | None:
    """Medians over the runs; None if the machine was not measured."""
    found = [limit for limit in limits if limit is not None]
    if not found:
        return None
    ratios = [limit.seconds / run.seconds for limit, run in zip(found, measurement.runs, strict=True)]
    assert measurement.shape is not None
    return {
        "dtype": measurement.shape.dtype,
        "num_bytes": median(limit.num_bytes for limit in found),
        "num_operations": median(limit.num_operations for limit in found),
        "limit_seconds": median(limit.seconds for limit in found),
        "ratio": median(ratios),
    }


def _heading(m: Measurement) -> list[str]:
    run, workload = m.runs[0], m.workload
    prefix = f", {workload.prefix_len:,} of each prompt's shared" if workload.prefix_len else ""
    known = (name for name in ("model", "device", "dtype", "attention", "drafter") if name in m.description)
    return [
        f"{counted(len(m.requests), 'request')} at once ({workload.dataset}, seed {m.seed}): "
        f"{run.num_input_tokens:,} tokens in{prefix}, {run.num_output_tokens:,} out",
        *(f"{name}: {m.description[name]}" for name in known),
        f"{counted(torch.get_num_threads(), 'thread')}; the engine started in {duration(m.start_seconds)}",
        f"{counted(len(m.runs), 'run')} after {m.num_warmups} to warm up: median (minimum to maximum)",
        "",
        f"{'steps':<16}{_steps(run)}",
    ]


def _steps(run: Run) -> str:
    tokens = sum(step.num_scheduled_tokens for step in run.steps)
    cached = sum(output.metrics.num_cached_tokens for output in run.outputs)
    parts = [
        f"{counted(len(run.steps), 'step')} of {tokens / max(1, len(run.steps)):,.1f} tokens",
        f"{cached:,} prompt tokens from the prefix cache",
    ]
    if preemptions := sum(output.metrics.num_preemptions for output in run.outputs):
        parts.append(counted(preemptions, "preemption"))
    if drafts := sum(step.num_draft_tokens for step in run.steps):
        accepted = sum(step.num_accepted_tokens for step in run.steps)
        parts.append(f"{drafts:,} drafts verified, {accepted:,} accepted ({accepted / drafts:.0%})")
    return "; ".join(parts)


def _roofline_lines(m: Measurement) -> list[str]:
    record = _roofline_record(m, [m.limit(run.steps) for run in m.runs])
    if record is None or m.machine is None:
        return []
    rates = f"{amount(m.machine.bytes_per_second, 'B/s')} and {amount(m.machine.operations_per_second, 'op/s')}"
    return [
        f"{'roofline':<16}{duration(record['limit_seconds'])} at {rates} in {record['dtype']}, measured; "
        f"reached {record['ratio']:.1%}",
        f"{'':<16}the work is {amount(record['num_bytes'], 'B')} and {amount(record['num_operations'], 'op')}",
    ]
