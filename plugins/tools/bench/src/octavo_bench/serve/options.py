"""Options of `octavo bench serve`.

Owns: their names, values and defaults, and which do not go together. Must never know: servers, clocks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from octavo.errors import ConfigError
from octavo_bench.options import add_dataset_options, not_negative, positive
from octavo_bench.serve.prompts import RESERVED_FIELDS
from octavo_bench.serve.results import GOALS
from octavo_bench.workload import Workload

_KEY_VARIABLES = ("OCTAVO_API_KEY", "OPENAI_API_KEY")


def configure(parser: argparse.ArgumentParser) -> None:
    _add_server_options(parser.add_argument_group("server"))
    add_dataset_options(parser.add_argument_group("workload (by default w1)"), "serve")
    _add_request_options(parser.add_argument_group("requests"))
    _add_load_options(parser.add_argument_group("load"))
    _add_report_options(parser.add_argument_group("report"))


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--base-url", type=_base_url, default="http://127.0.0.1:8000", metavar="URL", help="(default: %(default)s)"
    )
    group.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions", help="(default: completions)"
    )
    group.add_argument("--model", metavar="NAME", help="(default: the first that the server lists)")
    group.add_argument("--api-key", metavar="KEY", help=f"(default: {' or '.join(_KEY_VARIABLES)} of the environment)")


def _add_request_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompt-format",
        choices=("ids", "text"),
        help="random prompts as token ids or as text, a common word for each id (default: ids; text for chat)",
    )
    group.add_argument(
        "--vocab-size",
        type=positive,
        metavar="N",
        help="draw random ids below N (default: as the server says, or 49000)",
    )
    group.add_argument(
        "--temperature", type=_temperature, default=0.0, metavar="T", help="0 takes the most likely token (default: 0)"
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="answers run to their number of tokens, if the server knows ignore_eos",
    )
    group.add_argument(
        "--extra-body", type=_extra_body, default={}, metavar="JSON", help="an object of more fields for every request"
    )


def _add_load_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--request-rate",
        type=_rate,
        default=math.inf,
        metavar="R",
        help="requests a second (default: inf, all at once)",
    )
    group.add_argument(
        "--burstiness",
        type=_positive_number,
        default=1.0,
        metavar="B",
        help="shape of the gaps' gamma distribution: 1 is Poisson, less is burstier (default: 1)",
    )
    group.add_argument("--max-concurrency", type=positive, metavar="N", help="most requests in flight (default: all)")
    group.add_argument(
        "--num-warmups", type=not_negative, default=1, metavar="N", help="requests before, not measured (default: 1)"
    )
    group.add_argument(
        "--timeout", type=_positive_number, default=600.0, metavar="S", help="seconds for one request (default: 600)"
    )


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goodput",
        nargs="+",
        type=_goal,
        default=[],
        metavar="GOAL:MS",
        help=f"count requests that take at most so many ms; goals: {', '.join(GOALS)}",
    )
    group.add_argument(
        "--percentiles", type=_percentiles, default=(50.0, 90.0, 99.0), metavar="P,…", help="(default: 50,90,99)"
    )
    group.add_argument(
        "--json", "--output-json", metavar="FILE", help="write all numbers as JSON; '-': to standard output"
    )
    group.add_argument("--plot", metavar="FILE", help="draw all requests and their times as SVG")


def check(arguments: argparse.Namespace, workload: Workload) -> None:
    """Raises `ConfigError` for options that do not go together, or files that cannot be written."""
    if arguments.prompt_format == "ids" and arguments.endpoint == "chat":
        raise ConfigError("--prompt-format ids: a chat takes text; leave it out, or take --endpoint completions")
    if arguments.prompt_format is not None and workload.dataset == "jsonl":
        raise ConfigError("--prompt-format: the prompts of a file are sent as they are; leave it out")
    if arguments.burstiness != 1 and math.isinf(arguments.request_rate):
        raise ConfigError("--burstiness: all requests are sent at once; give a --request-rate")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file not in (None, "-") and not Path(file).parent.is_dir():  # a long run must not end so
            raise ConfigError(f"{option}: cannot write {file!r}: there is no folder {str(Path(file).parent)!r}")


def key_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """The API key of the command line, or else of the environment; an empty one is none. Raises `ConfigError`."""
    if arguments.api_key is not None:
        named = [("--api-key", arguments.api_key)]
    else:
        named = [(name, environment[name]) for name in _KEY_VARIABLES if environment.get(name)]
    for source, key in named[:1]:
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{source}: a key is printable ASCII, without line breaks")
        return key or None
    return None


def _base_url(text: str) -> str:
    """Without a slash or `/v1` at its end, since paths are added."""
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna")
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
        usable = parts.scheme in ("http", "https") and bool(host) and parts.port != 0 and plain
    except ValueError:  # a port out of range, a host that no resolver takes
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is not like http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rate(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, or inf")
    return value


def _positive_number(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _temperature(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _percentiles(text: str) -> tuple[float, ...]:
    found = [_number(part) for part in text.split(",")]
    if not all(0 < p <= 100 for p in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 50,90,99: numbers above 0, of at most 100")
    return tuple(sorted(set(found)))


def _goal(text: str) -> tuple[str, float]:
    """Name and seconds."""
    name, _, value = text.partition(":")
    limit = _number(value)
    if name not in GOALS or not 0 < limit < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not like ttft:500; goals, in ms: {', '.join(GOALS)}")
    return name, limit / 1e3


def _extra_body(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object: {error}") from error
    if taken := [name for name in RESERVED_FIELDS if name in found]:
        raise argparse.ArgumentTypeError(f"{', '.join(taken)}: the measurement needs these as it sets them")
    return found
