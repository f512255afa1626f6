"""`octavo bench latency`: one batch of requests, over and over, and when its tokens come.

Owns: the command's options and which times it reports. Must never know: engines, how anything is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from octavo_bench.engine import Run
from octavo_bench.figures import Spread
from octavo_bench.measurement import Measurement, measure
from octavo_bench.options import add_length_options, add_run_options, chosen_workload, not_negative, positive
from octavo_bench.report import publish
from octavo_bench.workload import WORKLOADS

_UNITS = {
    "seconds": ("end to end", 1e3, "ms"),
    "first_token_seconds": ("first token", 1e3, "ms"),
    "seconds_per_output_token": ("per token", 1e3, "ms"),
    "decode_tokens_per_second": ("decode", 1.0, "tokens/s"),
}
"""What each result is called for people, what it is multiplied with, and its unit then."""


def configure(parser: argparse.ArgumentParser) -> None:
    default = WORKLOADS["w2"]
    group = parser.add_argument_group("workload (by default w2)")
    group.add_argument(
        "--batch-size",
        dest="num_prompts",
        type=positive,
        metavar="N",
        help=f"requests that start together (default: {default.num_prompts})",
    )
    add_length_options(group, "latency", default)
    group = parser.add_argument_group("runs")
    group.add_argument("--num-iters", type=positive, default=10, metavar="N", help="measured batches (default: 10)")
    group.add_argument(
        "--num-iters-warmup", type=not_negative, default=2, metavar="N", help="batches before (default: 2)"
    )
    add_run_options(parser)


def run(arguments: argparse.Namespace) -> int:
    workload = chosen_workload(arguments, "latency", WORKLOADS["w2"])
    measurement = measure(
        arguments, "latency", workload, num_warmups=arguments.num_iters_warmup, repeats=arguments.num_iters
    )
    results = results_of(measurement)
    publish(measurement, results, _lines(results), arguments.json)
    return 0


def results_of(measurement: Measurement) -> dict[str, Spread | None]:
    """One value for each batch; None for what outputs of a single token, or an unmeasured machine, do not have.

    `seconds`: from submission to the last token of the batch. `first_token_seconds`: until each of its requests has a
    token. `seconds_per_output_token`: from one token of a request to its next, the mean of the batch.
    `decode_tokens_per_second`: of the batch, once each of its requests has a token. `decode_ratio`: the least time for
    the steps without prompts over that time.
    """
    runs = measurement.runs
    return {
        "seconds": Spread.of([run.seconds for run in runs]),
        "first_token_seconds": Spread.of([run.first_token_seconds for run in runs]),
        "seconds_per_output_token": _spread([run.seconds_per_output_token for run in runs]),
        "decode_tokens_per_second": _spread([_decode_rate(run) for run in runs]),
        "decode_ratio": _spread([_decode_ratio(measurement, run) for run in runs]),
    }


def _decode_rate(run: Run) -> float | None:
    tokens = sum(step.num_generated_tokens for step in run.decode_steps)
    return tokens / run.decode_seconds if tokens else None


def _decode_ratio(measurement: Measurement, run: Run) -> float | None:
    limit = measurement.limit(run.decode_steps)
    return limit.seconds / run.decode_seconds if limit and run.decode_steps else None


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def _lines(results: Mapping[str, Spread | None]) -> list[str]:
    lines = []
    for name, (label, factor, unit) in _UNITS.items():
        spread = results[name]
        shown = spread.times(factor).show(unit, tail=unit == "ms") if spread else "none: one token a request"
        lines.append(f"{label:<16}{shown}")
    if ratio := results["decode_ratio"]:
        lines.append(f"{'decode roofline':<16}reached {ratio.median:.1%}")
    return lines
