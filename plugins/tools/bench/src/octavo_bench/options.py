"""Command line options that the commands share, and the workload that they make.

Owns: names, values and defaults of the options. Must never know: engines, clocks.
"""

from __future__ import annotations

import argparse
import dataclasses

from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams
from octavo.spec import Tokenizer
from octavo_bench.workload import DEFAULTS, WORKLOADS, Lengths, Workload


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    return _whole(text, 0)


def lengths(text: str) -> Lengths:
    """`300`, or `32:512` for uniform lengths from 32 to 512."""
    low, colon, high = text.partition(":")
    found = Lengths(positive(low), positive(high if colon else low))
    if found.low > found.high:
        raise argparse.ArgumentTypeError(f"{text!r}: the lower bound comes first, {found.high}:{found.low}")
    return found


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value


def add_dataset_options(group: argparse._ArgumentGroup, command: str) -> None:
    """Flags for where requests come from and how many there are, and for what one of them is."""
    default = DEFAULTS["random"]
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
    add_length_options(group, command, default)


def add_length_options(group: argparse._ArgumentGroup, command: str, default: Workload) -> None:
    """Flags for what one request is; `--workload` has the workloads of `command`."""
    known = ", ".join(workloads_of(command))
    group.add_argument(
        "--workload", metavar="NAME", help=f"a named workload, whose values other options change: {known}"
    )
    group.add_argument(
        "--input-len",
        "--random-input-len",
        type=lengths,
        metavar="N|A:B",
        help=f"random prompt tokens of a request, or a range (default: {default.input_len})",
    )
    group.add_argument(
        "--output-len",
        "--random-output-len",
        type=lengths,
        metavar="N|A:B",
        help=f"tokens to generate for a request, or a range (default: {default.output_len})",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the random requests (default: 0)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Flags for sampling and for what is printed."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the most likely token (default: 0)"
    )
    group.add_argument("--no-ignore-eos", action="store_true", help="let a request end before its number of tokens")
    group.add_argument("--disable-detokenize", action="store_true", help="generate token ids only, no text")
    group = parser.add_argument_group("report")
    group.add_argument(
        "--json", "--output-json", metavar="FILE", help="write all numbers as JSON; '-': to standard output"
    )
    group.add_argument("--no-roofline", action="store_true", help="do not measure the machine (it takes some seconds)")


def workloads_of(command: str) -> list[str]:
    """The named workloads of a command: one request at a time is a matter of latency, and a server takes any."""
    return [
        name for name, w in WORKLOADS.items() if command == "serve" or (w.num_prompts == 1) == (command == "latency")
    ]


def chosen_workload(arguments: argparse.Namespace, command: str, default: Workload) -> Workload:
    """The named workload or the default, with the values that were given. Raises `ConfigError`."""
    if arguments.workload is not None:
        default = _named(arguments.workload, command)
    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Workload)}
    return dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})


def _named(name: str, command: str) -> Workload:
    if name.lower() not in WORKLOADS:
        raise ConfigError(f"--workload: no workload is called {name!r}; there is: {', '.join(WORKLOADS)}")
    if name.lower() not in workloads_of(command):
        right = "throughput" if command == "latency" else "latency"
        raise ConfigError(f"--workload {name} is for another command: octavo bench {right} --workload {name}")
    return WORKLOADS[name.lower()]


def choose_dataset(arguments: argparse.Namespace, command: str) -> Workload:
    """The workload of a command with `--dataset`. Raises `ConfigError` for options that do not go together."""
    dataset = arguments.dataset or ("jsonl" if arguments.dataset_path else None)
    if arguments.workload is not None and dataset is not None:
        raise ConfigError(f"--workload {arguments.workload} says which dataset it is; leave out one of the two")
    chosen = chosen_workload(arguments, command, DEFAULTS[dataset or "random"])
    if (chosen.dataset == "jsonl") != (arguments.dataset_path is not None):
        raise ConfigError(f"--dataset-path FILE and --dataset jsonl go together; the dataset is {chosen.dataset}")
    if chosen.dataset == "jsonl" and arguments.input_len is not None:
        raise ConfigError("--input-len: the prompts of a file are as long as they are; leave it out")
    if (chosen.dataset == "shared-prefix") != (chosen.prefix_len > 0):
        raise ConfigError(
            f"--prefix-len: with --dataset shared-prefix at least 1, with others nothing; the dataset is "
            f"{chosen.dataset} and the prefix {chosen.prefix_len}"
        )
    return chosen


def sampling_params(arguments: argparse.Namespace, tokenizer: Tokenizer | None = None) -> SamplingParams:
    """Raises `InvalidRequestError` for a temperature out of range."""
    return SamplingParams(
        temperature=arguments.temperature,
        ignore_eos=not arguments.no_ignore_eos,
        detokenize=tokenizer is not None and not arguments.disable_detokenize,
    )
