"""Octavo and its peers side by side: same machine, same weights, same token ids, in turn, several rounds.

    python benchmarks/compare                                          # everything
    python benchmarks/compare --scale 0.1 --rounds 2 --workloads W1,W2 --peers vllm,llama.cpp
    python benchmarks/compare --dtype bfloat16 --octavo-dtype int8     # Octavo's int8 beside everybody's bfloat16
    python benchmarks/compare --clients vllm,guidellm                  # their load generators against `octavo serve`

Makes a virtual environment for each peer, the weights in the form that each reads, a rehearsal for each engine (so that
nobody compiles or converts for the first time while measured), then rounds in rotated order, each run in a fresh
process. Writes `results.json`, `table.md` and `plot.svg` after every round. Exit status 1 if Octavo itself failed.

Owns: the options and the order of things. Must never know: how any engine is called.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients import CLIENTS, run_clients
from engines import GIBIBYTE, OCTAVO, PEERS, Engine, Launch, Resources
from environments import InstallError, make_environment, python_in
from outputs import draw, write
from processes import RunError, run_job
from report import METRICS, Contestant, faults
from scenarios import Query, first_request, warm_up, workloads
from weights import vocab_size, weights_for

from octavo.loading.locate import locate

RUNNERS = Path(__file__).parent / "runners"
WORKLOADS = ("W1", "W2", "W3", "W4")
PRECISIONS = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contestant, and how to run it."""

    contestant: Contestant
    command: Sequence[str]
    launch: Launch
    options: Mapping[str, Any]
    """Of the engine, as its runner reads them."""


class Comparison:
    """What all runs have in common."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._out, self._cache = Path(options.out), Path(options.venvs).expanduser()
        self._out.mkdir(parents=True, exist_ok=True)
        self._cache.mkdir(parents=True, exist_ok=True)
        self._packaged = Path(locate(options.model))
        size = vocab_size(self._packaged)
        self._asked = {name: workloads(size, options.scale)[name] for name in options.workloads}
        preparing = [first_request(size), *warm_up(size)]
        self._preparing = {"first": _plain(preparing[0]), "warm_up": [_plain(query) for query in preparing[1:]]}
        queries = [*preparing, *(query for asked in self._asked.values() for query in asked)]
        self._longest = max(len(query.prompt_token_ids) + query.num_output_tokens for query in queries)

    def run(self) -> int:
        """Everything; the exit status."""
        contestants, entrants = [], []
        for engine, precision in [(OCTAVO, self._options.octavo_dtype), *self._options.peers]:
            contestant = Contestant(f"{engine.name}-{precision}", engine.title, precision)
            contestants.append(contestant)
            try:
                entrants.append(self._rehearsed(engine, contestant))
            except (InstallError, RunError) as error:
                contestant.unavailable = str(error)
                print(f"{contestant.name}: unavailable: {error}", flush=True)
        for turn in range(self._options.rounds):
            start = turn % max(1, len(entrants))
            for entrant in [*entrants[start:], *entrants[:start]]:
                if entrant.contestant.unavailable is None:
                    self._compete(entrant, turn)
            write(contestants, _recorded(self._options), self._out)
        self._draw()
        print((self._out / "table.md").read_text(encoding="utf-8"))
        return 1 if contestants[0].unavailable else 0

    def _rehearsed(self, engine: Engine, contestant: Contestant) -> Entrant:
        """An engine that was installed, and has started once. Raises `InstallError` or `RunError`."""
        if contestant.precision not in engine.weights:
            raise InstallError(f"it has no {contestant.precision} of these weights")
        venv = self._venv(engine)
        python = str(python_in(venv)) if engine.installs else sys.executable
        if engine.installs and not self._options.skip_install:
            print(f"{contestant.name}: makes or checks {venv}", flush=True)
            make_environment(venv, engine, self._options.pip_option, self._log(engine))
        if not Path(python).exists():
            raise InstallError(f"there is no {venv}; run once without --skip-install")
        form = engine.weights[contestant.precision]
        cache_bytes = self._options.cache_gib * GIBIBYTE
        options = {
            "model": str(weights_for(self._packaged, form, contestant.precision, self._cache / "weights")),
            "precision": contestant.precision,
            "num_threads": self._options.threads,
            "cache_bytes": cache_bytes,
            "max_model_len": -(-self._longest // 128) * 128,
            "options": self._options.set.get(engine.name, {}),
        }
        launch = engine.launch(Resources(self._options.threads, cache_bytes, venv))
        entrant = Entrant(contestant, (python, str(RUNNERS / engine.runner)), launch, options)
        result = self._run(entrant, {})
        contestant.notes += [*launch.notes, ", ".join(f"{k} {v}" for k, v in result["versions"].items())]
        print(f"{contestant.name}: ready; its first start took {result['start_seconds']:.1f} s", flush=True)
        return entrant

    def _compete(self, entrant: Entrant, turn: int) -> None:
        """One run in one round; whoever fails, or gives other numbers of tokens than asked, is out from there on."""
        contestant = entrant.contestant
        try:
            result = self._run(entrant, self._asked)
            wrong = faults(result, {name: [q.num_output_tokens for q in asked] for name, asked in self._asked.items()})
            if wrong:
                raise RunError("; ".join(wrong))
        except RunError as error:
            contestant.unavailable = f"round {turn + 1}: {error}"
            print(f"{contestant.name}: {contestant.unavailable}", flush=True)
            return
        contestant.results[turn] = result
        values = [f"{m.name} {value:.4g} {m.unit}" for m in METRICS if (value := m.value(result)) is not None]
        print(f"round {turn + 1} {contestant.name}: {', '.join(values)}", flush=True)

    def _run(self, entrant: Entrant, asked: Mapping[str, Sequence[Query]]) -> dict[str, Any]:
        queries = {name: [_plain(query) for query in some] for name, some in asked.items()}
        job = {"engine": entrant.options, **self._preparing, "workloads": queries}
        folder = self._cache / "runs" / entrant.contestant.name
        return run_job(entrant.command, job, folder, entrant.launch.variables, self._options.limit)

    def _draw(self) -> None:
        venv, log = self._cache / "venvs" / "plot", self._cache / "plot-install.log"
        try:
            draw(self._out, venv, self._options.pip_option, log, may_install=not self._options.skip_install)
        except (InstallError, OSError) as error:
            print(error, flush=True)

    def _venv(self, engine: Engine) -> Path:
        return self._cache / "venvs" / engine.name

    def _log(self, engine: Engine) -> Path:
        return self._cache / f"{engine.name}-install.log"


def _plain(query: Query) -> dict[str, Any]:
    return {"prompt_token_ids": query.prompt_token_ids, "num_output_tokens": query.num_output_tokens}


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    """Options for the record: what was asked for, not where this machine keeps things."""
    kept = ("workloads", "rounds", "scale", "dtype", "octavo_dtype", "threads", "cache_gib", "set")
    return {name: getattr(options, name) for name in kept}


def main(options: argparse.Namespace) -> int:
    if options.clients:
        cache = Path(options.venvs).expanduser()
        return run_clients(options.clients, cache, Path(options.out), options.pip_option, not options.skip_install)
    return Comparison(options).run()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    home = os.environ.get("OCTAVO_CACHE_DIR") or "~/.cache/octavo"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="a list; each NAME or NAME:DTYPE (default: %(default)s)"
    )
    parser.add_argument("--clients", help=f"run load generators against a server instead: {', '.join(CLIENTS)}")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="a list (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=PRECISIONS, default="float32", help="of everybody (default: %(default)s)")
    parser.add_argument("--octavo-dtype", choices=PRECISIONS, help="of Octavo, if not that")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the requests to run, for a quick try")
    parser.add_argument("--threads", type=int, default=cores, help="for each engine (default: all %(default)s)")
    parser.add_argument("--cache-gib", type=int, default=2, help="KV cache of each engine (default: %(default)s)")
    parser.add_argument("--model", help="a GGUF file (default: the packaged model)")
    parser.add_argument("--out", default="build/compare", help="where results go (default: %(default)s)")
    parser.add_argument("--venvs", default=f"{home}/compare", help="environments and weights (default: %(default)s)")
    parser.add_argument("--skip-install", action="store_true", help="take the environments as they are")
    parser.add_argument("--pip-option", action="append", default=[], help="for `pip install`, such as =--no-cache-dir")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one run (default: %(default)g)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="ENGINE:KEY=VALUE", help="an option of one engine; VALUE as JSON"
    )
    options = parser.parse_args()
    options.octavo_dtype = options.octavo_dtype or options.dtype
    options.workloads = options.workloads.split(",")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if unknown := set(options.workloads).difference(WORKLOADS):
        parser.error(f"there are no workloads {', '.join(sorted(unknown))}, only {', '.join(WORKLOADS)}")
    options.clients = options.clients.split(",") if options.clients else []
    if unknown := set(options.clients).difference(CLIENTS):
        parser.error(f"there are no clients {', '.join(sorted(unknown))}, only {', '.join(CLIENTS)}")
    options.peers = [_peer(parser, text, options.dtype) for text in options.peers.split(",") if text]
    options.set = _settings(parser, options.set)
    return options


def _peer(parser: argparse.ArgumentParser, text: str, dtype: str) -> tuple[Engine, str]:
    name, _, precision = text.partition(":")
    if name not in PEERS or (precision or dtype) not in PRECISIONS:
        parser.error(f"{text!r} is no peer; there is {', '.join(PEERS)}, with or without :DTYPE")
    return PEERS[name], precision or dtype


def _settings(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By engine. Octavo's stay text, as on its own command line."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        engine, colon, assignment = text.partition(":")
        key, equals, value = assignment.partition("=")
        if not (colon and equals) or engine not in (OCTAVO.name, *PEERS):
            parser.error(f"--set {text!r} is not ENGINE:KEY=VALUE")
        try:
            found.setdefault(engine, {})[key] = value if engine == OCTAVO.name else json.loads(value)
        except json.JSONDecodeError as error:
            parser.error(f"--set {text!r}: the value is not JSON ({error}); text needs quotes")
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # not without its child
    sys.exit(main(parse_options()))
