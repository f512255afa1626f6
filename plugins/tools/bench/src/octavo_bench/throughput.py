"""`octavo bench throughput`: many requests at once, and how long the engine takes for all of them.

Owns: the command's options and which rates it reports. Must never know: engines, how anything is measured.
"""

from __future__ import annotations

import argparse

from octavo_bench.figures import Spread
from octavo_bench.measurement import Measurement, measure
from octavo_bench.options import (
    add_length_options,
    add_run_options,
    choose_dataset,
    not_negative,
    positive,
)
from octavo_bench.report import publish
from octavo_bench.workload import DEFAULTS, Workload

_UNITS = {
    "seconds": ("time", "s"),
    "requests_per_second": ("requests", "requests/s"),
    "input_tokens_per_second": ("input", "tokens/s"),
    "output_tokens_per_second": ("output", "tokens/s"),
    "total_tokens_per_second": ("input + output", "tokens/s"),
}
"""What each result is called for people, and its unit."""


def configure(parser: argparse.ArgumentParser) -> None:
    default: Workload = DEFAULTS["random"]
    group = parser.add_argument_group("workload (by default w1)")
    group.add_argument(
        "--dataset", "--dataset-name", choices=tuple(DEFAULTS), help="where requests come from (default: random)"
    )
    group.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="JSON objects, one a line, with prompt, messages or prompt_token_ids, and perhaps max_tokens",
    )
    group.add_argument(
        "--num-prompts", type=positive, metavar="N", help=f"requests (default: {default.num_prompts}; a file's: all)"
    )
    group.add_argument(
        "--prefix-len",
        "--random-prefix-len",
        type=positive,
        metavar="N",
        help=f"shared tokens before each prompt's own (default: {DEFAULTS['shared-prefix'].prefix_len})",
    )
    add_length_options(group, "throughput", default)
    group = parser.add_argument_group("runs")
    group.add_argument("--repeats", type=positive, default=3, metavar="N", help="measured runs (default: 3)")
    group.add_argument(
        "--warmup", type=not_negative, default=1, metavar="N", help="runs before, not measured (default: 1)"
    )
    add_run_options(parser)


def run(arguments: argparse.Namespace) -> int:
    workload = choose_dataset(arguments)
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
