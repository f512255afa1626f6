"""Every feature with every other: combinations that hold each pair of settings, each run against the plain path.

    plugins = [octavo_ngram.plugin, octavo_xgrammar.plugin]
    matrix = Matrix(drafters=("ngram",), grammars=("xgrammar json",), plugins=plugins)
    for combination in matrix.combinations():
        print(combination, matrix.check(combination))

The plain path is one engine without drafts, prefix cache, chunks and preemption. A combination holds if its tokens are
the same, and counters show that each setting was in force.
Owns: the factors and their comparison. Must never know: what any plugin does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import OctavoError
from octavo.request import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.spec import SequenceView
from octavo.structured_outputs import StructuredOutputsParams
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID, LEANING, table_llm
from octavo.testing.workload import Job, pairwise, run_jobs

Combination = Mapping[str, str]
"""A value for each of the factors."""

PLAIN = "plain"
"""In place of every setting: the engine of the plain path."""
RIGHT, WRONG = "always right", "always wrong"
CONSTRAINTS: Mapping[str, Any] = {
    "json": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "size": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "size", "tags"],
        "additionalProperties": False,
    },
    "regex": "(ab|cd){2,9}-[0-9]{3,8}",
    "choice": [f"the {word} that nobody knows, though all have asked for it" for word in ("answer", "answers", "end")],
}
"""A constraint of each kind that is written alike for all backends."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "penalties": {"presence_penalty": 0.9, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {20: 3.0, 40: 2.0, 60: -5.0}},
    "min_p": {"min_p": 0.02},
    "logprobs": {"logprobs": 2},
    "processor": {"extra_args": {"scripted": True}},
}
_PROMPTS = ([30, 31, 32] * 9, [40 + i for i in range(37)], [70, 71, 72, 73] * 6, [90], [30, 31, 32] * 9 + [77])
_MAX_TOKENS = 40
_ENOUGH_BLOCKS, _SCARCE_BLOCKS = 200, 8
_CHUNK = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one combination."""

    holds: bool
    reason: str = ""
    """Why it was refused, or what differs."""
    refused: bool = False
    """No engine, or no request, was to be had with it."""

    def __str__(self) -> str:
        return "equal" if self.holds else f"{'refused' if self.refused else 'DIFFERS'}: {self.reason}"


class Matrix:
    """Engines are kept for all combinations that differ only in what requests ask for."""

    def __init__(self, drafters: Sequence[str], grammars: Sequence[str], **keywords: Any) -> None:
        """Names of drafters, and of grammar backends with a kind (`xgrammar json`); `keywords` as for `table_llm`."""
        self.factors: dict[str, Sequence[str]] = {
            "drafter": ("none", *drafters, RIGHT, WRONG),
            "grammar": ("none", *grammars),
            "prefix cache": ("cold", "warm"),
            "prompt": ("whole", "chunked"),
            "preemption": ("no", "yes"),
            "sampling": ("greedy", "seeded"),
            "option": tuple(OPTIONS),
        }
        self._keywords = keywords
        self._engines: dict[tuple[str, ...], Any] = {}
        self._plain: dict[tuple[str, ...], list[RequestOutput]] = {}
        self._answers: dict[str, tuple[int, ...]] = {}

    def combinations(self) -> Iterator[Combination]:
        """Few that hold each pair of values of any two factors; always the same ones."""
        return pairwise(self.factors)

    def check(self, combination: Combination) -> Verdict:
        """Run it and its plain path."""
        jobs = _jobs(combination)
        try:
            plain = self._run_plain(combination, jobs)
            engine = self._engine(combination)
            if combination["prefix cache"] == "cold":
                engine.reset_prefix_cache()
            else:
                run_jobs(engine, [Job(prompt=job.prompt, params=SamplingParams(max_tokens=1)) for job in jobs])
            accepted = _AcceptedDrafts(engine)
            outputs = run_jobs(engine, jobs, after_step=accepted.count)
        except OctavoError as error:
            return Verdict(False, str(error), refused=True)
        errors = [c.error for output in (*plain, *outputs) for c in output.outputs if c.error]
        if errors:
            return Verdict(False, errors[0], refused=True)
        return _compare(combination, plain, outputs, accepted.total)

    def _run_plain(self, combination: Combination, jobs: Sequence[Job]) -> list[RequestOutput]:
        key = tuple(combination[factor] for factor in ("grammar", "sampling", "option"))
        if key not in self._plain:
            outputs = self._plain[key] = run_jobs(self._engine(dict.fromkeys(self.factors, PLAIN)), jobs)
            for job, output in zip(jobs, outputs, strict=True):
                self._answers[_question(job.prompt, job.params)] = output.outputs[0].token_ids
        return self._plain[key]

    def _engine(self, combination: Combination) -> Any:
        """The engine of that drafter and those limits; all else is up to requests."""
        drafter, prompt, preemption = (combination[factor] for factor in ("drafter", "prompt", "preemption"))
        key = (drafter, prompt, preemption)
        if key not in self._engines:
            settings: dict[str, Any] = {
                "architecture": LEANING,
                "vocabulary": "bytes",
                "num_blocks": _SCARCE_BLOCKS if preemption == "yes" else _ENOUGH_BLOCKS,
                "max_num_batched_tokens": _CHUNK if prompt == "chunked" else 2048,
                "enable_prefix_caching": drafter != PLAIN,
                "jump_forward": drafter != PLAIN,
                "num_draft_tokens": 6,
            }
            scripts = {RIGHT: self._right, WRONG: self._wrong}
            settings["drafter"] = {PLAIN: "none", RIGHT: "scripted", WRONG: "scripted"}.get(drafter, drafter)
            plugins = [
                *self._keywords.get("plugins", ()),
                ScriptedProcessor(_forbid_some),
                ScriptedDrafter(scripts.get(drafter, self._right)),
            ]
            self._engines[key] = table_llm(**(self._keywords | settings | {"plugins": plugins})).engine
        return self._engines[key]

    def _right(self, sequence: SequenceView, most: int) -> Sequence[int]:
        answer = self._answers.get(_question(sequence.request.prompt_token_ids, sequence.request.sampling_params), ())
        return answer[len(sequence.output_token_ids) :][:most]

    def _wrong(self, sequence: SequenceView, most: int) -> Sequence[int]:
        return [
            token_id - 1 if token_id > EOS_TOKEN_ID + 1 else token_id + 1 for token_id in self._right(sequence, most)
        ]


class _AcceptedDrafts:
    """Accepted drafts of all steps of an engine from now on."""

    def __init__(self, engine: Any) -> None:
        self._core, self._last, self.total = engine.core, engine.core.last_stats, 0

    def count(self, step: int) -> None:
        if self._core.last_stats is not self._last:
            self._last = self._core.last_stats
            self.total += self._last.num_accepted_tokens


def _jobs(combination: Combination) -> list[Job]:
    options: dict[str, Any] = {"temperature": 0.0 if combination["sampling"] == "greedy" else 0.8, "seed": 11}
    options |= OPTIONS[combination["option"]]
    if combination["grammar"] == "none":
        options["ignore_eos"] = True
    else:
        backend, kind = combination["grammar"].split()
        constraint = {kind: CONSTRAINTS[kind]}
        options["structured_outputs"] = StructuredOutputsParams(**constraint, backend=backend)
    return [Job(prompt=tuple(p), params=SamplingParams(max_tokens=_MAX_TOKENS, **options)) for p in _PROMPTS]


def _question(prompt: Sequence[int], params: SamplingParams) -> str:
    return repr((tuple(prompt), params))


def _forbid_some(logits: torch.Tensor, tokens: list[int]) -> None:
    """Less likely: some tokens that depend on what stands before, drafts included."""
    logits[(tokens[-1] * 7 + len(tokens)) % 5 :: 5] -= 2.0


def _compare(
    combination: Combination, plain: Sequence[RequestOutput], outputs: Sequence[RequestOutput], num_accepted: int
) -> Verdict:
    for i, (expected, found) in enumerate(zip(plain, outputs, strict=True)):
        want, got = expected.outputs[0], found.outputs[0]
        if got.token_ids != want.token_ids or got.finish_reason != want.finish_reason:
            return Verdict(False, f"prompt {i}: {got.token_ids} instead of {want.token_ids}")
        if want.logprobs and [p.token_id for p in got.logprobs or ()] != list(want.token_ids):
            return Verdict(False, f"prompt {i}: log probabilities of other tokens")
    seen = {
        ("drafter", RIGHT): num_accepted > 0,
        ("prefix cache", "warm"): any(o.metrics.num_cached_tokens for o in outputs),
        ("preemption", "yes"): any(o.metrics.num_preemptions for o in outputs),
    }
    idle = [f"{name} {value}" for (name, value), shown in seen.items() if combination[name] == value and not shown]
    return Verdict(not idle, f"{', '.join(idle)} had no effect" if idle else "")
