"""From options to measured runs: one engine, warmed up, the same requests several times, the machine before and after.

Owns: the order of what is done. Must never know: what is reported of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.step import StepStats
from octavo_bench.engine import BenchEngine, Run
from octavo_bench.jsonl import read_requests
from octavo_bench.machine import measure_machine
from octavo_bench.options import sampling_params
from octavo_bench.output import tell
from octavo_bench.roofline import Limit, Machine, limit_of
from octavo_bench.work import ModelShape
from octavo_bench.workload import BenchRequest, Workload, random_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was run, on what, and how long it took."""

    command: str
    workload: Workload
    seed: int
    num_warmups: int
    requests: tuple[BenchRequest, ...]
    runs: tuple[Run, ...]
    description: dict[str, str]
    """Of the engine: what it chose at start and why."""
    start_seconds: float
    """To build the engine, the model's loading included."""
    shape: ModelShape | None
    """None if the model was not loaded in this process."""
    machine: Machine | None
    """None if it was not to be measured, or the shape is not known."""

    def limit(self, steps: Sequence[StepStats]) -> Limit | None:
        """The least time for these steps."""
        if self.shape is None or self.machine is None:
            return None
        return limit_of(self.shape, steps, self.machine, self.workload.prefix_len)


def measure(
    arguments: argparse.Namespace, command: str, workload: Workload, *, num_warmups: int, repeats: int
) -> Measurement:
    """Raises what building an engine raises, `ConfigError` for requests that it cannot take."""
    sampling_params(arguments)  # refuses bad values before a model is loaded
    with BenchEngine(arguments.engine_config) as engine:
        requests = _requests(arguments, workload, engine)
        engine.check(requests)
        params = sampling_params(arguments, engine.tokenizer)
        machine = _machine(arguments, engine)
        for turn in range(num_warmups):
            tell(f"warm-up {turn + 1} of {num_warmups}")
            engine.run(requests, params)
        runs: list[Run] = []
        for turn in range(repeats):
            tell(f"run {turn + 1} of {repeats}")
            runs.append(engine.run(requests, params))
        after = _machine(arguments, engine)
        if machine is not None and after is not None:
            machine = machine.best_with(after)
        return Measurement(
            command=command,
            workload=workload,
            seed=arguments.seed,
            num_warmups=num_warmups,
            requests=tuple(requests),
            runs=tuple(runs),
            description=engine.description,
            start_seconds=engine.start_seconds,
            shape=engine.shape,
            machine=machine,
        )


def _requests(arguments: argparse.Namespace, workload: Workload, engine: BenchEngine) -> list[BenchRequest]:
    if workload.dataset == "jsonl":
        path, tokenizer = arguments.dataset_path, engine.tokenizer
        return read_requests(path, tokenizer, workload.output_len, workload.num_prompts, arguments.seed)
    if workload.num_prompts is None:
        raise ConfigError(f"--num-prompts: dataset {workload.dataset} has no end; give a number")
    return random_requests(workload, workload.num_prompts, engine.vocab_size, arguments.seed)


def _machine(arguments: argparse.Namespace, engine: BenchEngine) -> Machine | None:
    if arguments.no_roofline or engine.shape is None:
        return None
    tell("measuring the machine")
    return measure_machine(engine.shape.dtype, engine.shape.device)
