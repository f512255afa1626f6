"""`SamplingParams` as command line flags.

Owns: the flags of `octavo generate` and `octavo chat`. Must never know: engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams

_NUMBERS = {
    "n": (int, "completions of each prompt"),
    "max_tokens": (int, "most tokens to generate"),
    "min_tokens": (int, "fewest tokens before the text may end"),
    "temperature": (float, "0 takes the most likely token"),
    "top_p": (float, "keep the most likely tokens up to this probability"),
    "top_k": (int, "keep this many most likely tokens; 0: all"),
    "min_p": (float, "drop tokens less likely than this times the most likely one"),
    "presence_penalty": (float, "lower tokens that were already generated"),
    "frequency_penalty": (float, "lower tokens for each time they were generated"),
    "repetition_penalty": (float, "divide the scores of tokens already in prompt or text"),
    "logprobs": (int, "return log probabilities of this many most likely tokens"),
}


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int, leave_out: Collection[str] = ()) -> None:
    """Flags for the most used sampling options; `max_tokens` is the command's own default."""
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in _NUMBERS.items():
        if name in leave_out:
            continue
        if name == "max_tokens":
            text = f"{text} (default: {max_tokens})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=text)
    group.add_argument("--stop", action="append", default=argparse.SUPPRESS, help="text that ends it; repeatable")
    group.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS, help="go on after the end token")
    parser.set_defaults(default_max_tokens=max_tokens)
    _add_structured_outputs(parser.add_argument_group("structured output"))


def _add_structured_outputs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json-schema", dest="schema", metavar="SCHEMA", help="JSON that obeys this schema; text, or @FILE"
    )
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument("--regex", metavar="REGEX", help="text that matches this regular expression")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; repeatable")
    group.add_argument("--grammar", metavar="GRAMMAR", help="text of this context-free grammar; text, or @FILE")
    group.add_argument("--any-whitespace", action="store_true", help="JSON with whitespace in it, not compact")


def sampling_changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, as keyword arguments of `SamplingParams`. Raises `InvalidRequestError`."""
    names = [*_NUMBERS, "stop", "ignore_eos"]
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    changes = {"max_tokens": arguments.default_max_tokens} | given
    constraint = {
        "json": _text_or_file(arguments.schema),
        "json_object": arguments.json_object or None,
        "regex": arguments.regex,
        "choice": arguments.choice,
        "grammar": _text_or_file(arguments.grammar),
        "any_whitespace": arguments.any_whitespace or None,
    }
    if constraint := {name: value for name, value in constraint.items() if value is not None}:
        changes["structured_outputs"] = constraint
    SamplingParams(**changes)  # refuses bad values before a model is loaded
    return changes


def _text_or_file(given: str | None) -> str | None:
    """What an option says, or the contents of the file that it names behind an `@`."""
    if given is None or not given.startswith("@"):
        return given
    try:
        with open(given[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {given[1:]!r}: {error}") from error
