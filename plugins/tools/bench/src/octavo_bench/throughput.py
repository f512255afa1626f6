"""`octavo bench throughput`: many requests at once, and how long the engine takes for all of them.

Owns: the command's options and which rates it reports. Must never know: engines, how anything is measured.
"""

from __future__ import annotations

import argparse

from octavo_bench.figures import Spread
from octavo_bench.measurement import Measurement, measure
from octavo_bench.options import add_dataset_options, add_run_options, choose_dataset, not_negative, positive
from octavo_bench.report import publish

_UNITS = {
    "seconds": ("time", "s"),
    "requests_per_second": ("requests", "requests/s"),
    "input_tokens_per_second": ("input", "tokens/s"),
    "output_tokens_per_second": ("output", "tokens/s"),
    "total_tokens_per_second": ("input + output", "tokens/s"),
}
"""What each result is called for people, and its unit."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset_options(parser.add_argument_group("workload (by default w1)"), "throughput")
    group = parser.add_argument_group("runs")
    group.add_argument("--repeats", type=positive, default=3, metavar="N", help="measured runs (default: 3)")
    group.add_argument(
        "--warmup", type=not_negative, default=1, metavar="N", help="runs before, not measured (default: 1)"
    )
    add_run_options(parser)


def run(arguments: argparse.Namespace) -> int:
    workload = choose_dataset(arguments, "throughput")
    measurement = measure(arguments, "throughput", workload, num_warmups=arguments.warmup, repeats=arguments.repeats)
    results = results_of(measurement)
    lines = [f"{_UNITS[name][0]:<16}{spread.show(_UNITS[name][1])}" for name, spread in results.items()]
    publish(measurement, results, lines, arguments.json)
    return 0


def results_of(measurement: Measurement) -> dict[str, Spread]:
    """One value for each run; tokens found in the prefix cache count as input like any others."""
    runs = measurement.runs
    return {
        "seconds": Spread.of([r.seconds for r in runs]),
        "requests_per_second": Spread.of([len(r.outputs) / r.seconds for r in runs]),
        "input_tokens_per_second": Spread.of([r.num_input_tokens / r.seconds for r in runs]),
        "output_tokens_per_second": Spread.of([r.num_output_tokens / r.seconds for r in runs]),
        "total_tokens_per_second": Spread.of([(r.num_input_tokens + r.num_output_tokens) / r.seconds for r in runs]),
    }
