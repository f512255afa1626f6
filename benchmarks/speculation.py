"""Speculation against plain decoding on the packaged model: speed, acceptance, and that no token differs.

    python benchmarks/speculation.py --tasks repeat,open --drafters ngram --repeats 5 --json result.json

Chat tasks run one request at a time (batch 1, greedy); `w1` and `w1-sampled` submit many at once. Every drafter has an
engine of its own, new for each repeat, so that nothing learnt from one repeat helps in the next. Exit status 1 if
tokens differ other than at a near tie.

Owns: the tasks, the engines, the comparison. Must never know: how any drafter works.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from measuring import counted, median, print_table, rotated, write_json
from workloads import ChatPrompt, chat_prompts, w1

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.hookspecs import hookimpl
from octavo.spec import Observer, Tokenizer
from octavo.step import StepStats

CHAT_TASKS = ("repeat", "agent", "open")
W1_TEMPERATURES = {"w1": 0.0, "w1-sampled": 1.0}
TASKS = (*CHAT_TASKS, *W1_TEMPERATURES)
PLAIN = "none"
NEAR_TIE = 0.05
"""Log probabilities closer than this may change places with the shape of a batch, in bfloat16 at least."""


class StepCounter(Observer):
    """A plugin, and the observer that it offers: what became of drafts."""

    def __init__(self) -> None:
        self.num_steps = self.num_tokens = self.num_proposed = self.num_verified = self.num_accepted = 0

    @hookimpl
    def octavo_make_observers(self, config: EngineConfig) -> list[Observer]:
        return [self]

    def on_step(self, stats: StepStats) -> None:
        self.num_steps += stats.num_sampled_sequences
        self.num_tokens += stats.num_generated_tokens
        self.num_proposed += stats.num_proposed_tokens
        self.num_verified += stats.num_draft_tokens
        self.num_accepted += stats.num_accepted_tokens


@dataclass(frozen=True, slots=True)
class Run:
    """One request, or one W1, with one drafter."""

    seconds: float
    decode_seconds: float
    """Without the time to the first token; of W1 all of it."""
    outputs: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Record:
    """All runs of one drafter on one task."""

    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    """By prompt."""
    counters: list[StepCounter] = field(default_factory=list)

    def seconds(self) -> float:
        """Of the whole task: the sum over prompts of the median over repeats."""
        return sum(median([run.seconds for run in runs]) for runs in self.runs.values())

    def decode_seconds(self) -> float:
        return sum(median([run.decode_seconds for run in runs]) for runs in self.runs.values())

    def num_tokens(self) -> int:
        return sum(len(output) for runs in self.runs.values() for output in runs[0].outputs)

    def rate(self) -> float:
        return self.num_tokens() / self.seconds()

    def decode_rate(self) -> float:
        return self.num_tokens() / self.decode_seconds()

    def verified(self) -> float | None:
        """Part of the proposed drafts."""
        proposed = sum(c.num_proposed for c in self.counters)
        return sum(c.num_verified for c in self.counters) / proposed if proposed else None

    def acceptance(self) -> float | None:
        """Part of the verified drafts."""
        verified = sum(c.num_verified for c in self.counters)
        return sum(c.num_accepted for c in self.counters) / verified if verified else None

    def tokens_per_step(self) -> float:
        return sum(c.num_tokens for c in self.counters) / sum(c.num_steps for c in self.counters)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which an output differs from plain decoding."""

    prompt: str
    output: int
    """Of a W1, which request."""
    position: int
    lead: float | None


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter with its engine."""

    drafter: str
    llm: LLM
    counter: StepCounter


def make_arm(drafter: str, options: argparse.Namespace) -> Arm:
    counter = StepCounter()
    keywords: dict[str, Any] = {"drafter": drafter, "memory": options.memory, "plugins": [counter]}
    if options.all_drafts:
        keywords["adaptive"] = False
    if options.num_draft_tokens is not None:
        keywords["num_draft_tokens"] = options.num_draft_tokens
    if options.dtype is not None:
        keywords["dtype"] = options.dtype
    return Arm(drafter, LLM(**keywords), counter)


def _tokenizer(arm: Arm) -> Tokenizer:
    tokenizer = arm.llm.get_tokenizer()
    assert tokenizer is not None, "the packaged model has a tokenizer"
    return tokenizer


def _token_ids(arm: Arm, prompt: ChatPrompt) -> list[int]:
    tokenizer = _tokenizer(arm)
    return tokenizer.encode(tokenizer.apply_chat_template(prompt.messages), add_special_tokens=False)


def run_chat(arm: Arm, prompt: ChatPrompt, max_tokens: int) -> Run:
    token_ids = _token_ids(arm, prompt)
    started = time.perf_counter()
    output = arm.llm.generate(token_ids, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)[0]
    return Run(time.perf_counter() - started, output.metrics.decode_time or 0.0, (output.outputs[0].token_ids,))


def run_w1(arm: Arm, num_requests: int, temperature: float) -> Run:
    requests = w1(num_requests, _tokenizer(arm).vocab_size)
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=r.num_output_tokens, ignore_eos=True)
        for i, r in enumerate(requests)
    ]
    prompts = [list(r.prompt_token_ids) for r in requests]
    started = time.perf_counter()
    outputs = arm.llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    return Run(seconds, seconds, tuple(output.outputs[0].token_ids for output in outputs))


def measure(task: str, options: argparse.Namespace) -> dict[str, Record]:
    records = {drafter: Record() for drafter in options.drafters}
    for repeat in range(options.repeats):
        arms = [make_arm(drafter, options) for drafter in options.drafters]
        try:
            for arm in arms:  # the first forward passes of a process are slow
                arm.llm.generate("Hello", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
            _run_all(task, repeat, arms, records, options)
        finally:
            for arm in arms:
                arm.llm.shutdown()
            del arms
            gc.collect()
    return records


def _run_all(
    task: str, repeat: int, arms: Sequence[Arm], records: dict[str, Record], options: argparse.Namespace
) -> None:
    """The whole task once with each drafter, prompt by prompt in turn."""
    prompts = chat_prompts(task)[: options.limit] if task in CHAT_TASKS else [ChatPrompt(task, ())]
    for i, prompt in enumerate(counted(prompts, f"{task}, repeat {repeat + 1}")):
        for arm in rotated(arms, repeat + i):
            if task != "agent":  # an agent's prompts grow, and its engine may keep what it has of them
                arm.llm.engine.reset_prefix_cache()
            if task in W1_TEMPERATURES:
                run = run_w1(arm, options.requests, W1_TEMPERATURES[task])
            else:
                run = run_chat(arm, prompt, options.max_tokens)
            records[arm.drafter].runs[prompt.name].append(run)
    for arm in arms:
        records[arm.drafter].counters.append(arm.counter)


def differences(task: str, plain: Record, other: Record, options: argparse.Namespace) -> list[Difference]:
    """Where outputs part from those of plain decoding, in any repeat."""
    found = set()
    for name, runs in other.runs.items():
        expected = plain.runs[name][0].outputs
        for outputs in {run.outputs for run in [*runs, *plain.runs[name]]}:
            for index, (want, have) in enumerate(zip(expected, outputs, strict=True)):
                if want != have:
                    equal = (a == b for a, b in zip(want, have, strict=False))
                    found.add((name, index, next((p for p, same in enumerate(equal) if not same), len(want))))
    if not found:
        return []
    arm = make_arm(PLAIN, options)
    result = [Difference(*where, _lead(arm, task, plain, *where, options)) for where in sorted(found)]
    arm.llm.shutdown()
    return result


def _lead(
    arm: Arm, task: str, plain: Record, name: str, index: int, position: int, options: argparse.Namespace
) -> float | None:
    """By how much the first choice led over the second one (log probability); None where tokens are sampled."""
    tokenizer = _tokenizer(arm)
    if task in CHAT_TASKS:
        before = _token_ids(arm, next(prompt for prompt in chat_prompts(task) if prompt.name == name))
    else:
        before = list(w1(options.requests, tokenizer.vocab_size)[index].prompt_token_ids)
    if W1_TEMPERATURES.get(task):
        return None
    before += plain.runs[name][0].outputs[index][:position]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2, ignore_eos=True)
    logprobs = arm.llm.generate(before, params, use_tqdm=False)[0].outputs[0].logprobs
    assert logprobs, "log probabilities were asked for"
    return logprobs[0].top[0][1] - logprobs[0].top[1][1]


def summarise(task: str, records: dict[str, Record], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Results by drafter."""
    plain, result = records[PLAIN], {}
    for drafter, record in records.items():
        found = differences(task, plain, record, options) if drafter != PLAIN else []
        result[drafter] = {
            "tokens": record.num_tokens(),
            "tokens_per_second": record.rate(),
            "ratio": record.rate() / plain.rate(),
            "decode_ratio": record.decode_rate() / plain.decode_rate(),
            "verified": record.verified(),
            "acceptance": record.acceptance(),
            "tokens_per_step": record.tokens_per_step(),
            "outputs_that_differ": len({(d.prompt, d.output) for d in found}),
            "not_near_ties": sum(d.lead is not None and d.lead > NEAR_TIE for d in found),
            "differences": [dataclasses.asdict(d) for d in found],
            "ratio_by_prompt": {
                name: median([r.seconds for r in plain.runs[name]]) / median([r.seconds for r in runs])
                for name, runs in record.runs.items()
            },
        }
    return result


HEADER = [
    "task",
    "drafter",
    "tokens",
    "tok/s",
    "ratio",
    "decode",
    "verified",
    "accepted",
    "tok/step",
    "differ",
    "not near ties",
]


def main() -> int:
    options = _parse()
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    rows: list[list[Any]] = []
    for task in options.tasks:
        tasks[task] = summarise(task, measure(task, options), options)
        new = [[task, drafter, *list(entry.values())[: len(HEADER) - 2]] for drafter, entry in tasks[task].items()]
        rows += new
        print_table(HEADER, new)
    if len(options.tasks) > 1:
        print_table(HEADER, rows)
    write_json(options.json, {"options": vars(options), "tasks": tasks})
    return int(any(entry["not_near_ties"] for entries in tasks.values() for entry in entries.values()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--drafters", default="ngram,suffix", help="compared with none (default: ngram,suffix)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each prompt with each drafter")
    parser.add_argument("--limit", type=int, help="only the first prompts of each chat task")
    parser.add_argument("--max-tokens", type=int, default=160, help="of each chat answer")
    parser.add_argument("--requests", type=int, default=64, help="of w1")
    parser.add_argument("--num-draft-tokens", type=int, help="most drafts a step (default: the engine's)")
    parser.add_argument("--all-drafts", action="store_true", help="verify all drafts: no adaptive speculation")
    parser.add_argument("--dtype", help="float32 or bfloat16 (default: the engine's choice)")
    parser.add_argument("--memory", default="2GiB", help="KV cache of each engine")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    options = parser.parse_args()
    options.tasks = _names(options.tasks)
    options.drafters = [PLAIN, *(name for name in _names(options.drafters) if name != PLAIN)]
    unknown = set(options.tasks) - set(TASKS)
    if unknown:
        parser.error(f"unknown task {', '.join(sorted(unknown))}; there is {', '.join(TASKS)}")
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main())
