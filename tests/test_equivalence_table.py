"""The same tokens under every circumstance: the table model against the naive engine, to the bit.

Every pair of circumstances meets in some combination (chunk size, block size, cache, room, drafter, processor,
queue, aborts), each with a mix of requests drawn by the combination's own seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.request import FinishReason, RequestOutput
from octavo.spec import SequenceView
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID, VOCAB_SIZE, table_llm, table_next_logits
from octavo.testing.workload import Job, Reference, check_nothing_left, pairwise, run_jobs

CHUNKS = {
    "1": {"max_num_batched_tokens": 1},
    "1-each": {"long_prefill_token_threshold": 1, "max_num_batched_tokens": 13},
    "7": {"max_num_batched_tokens": 7},
    "7-each": {"long_prefill_token_threshold": 7, "max_num_batched_tokens": 30},
    "16": {"max_num_batched_tokens": 16},
    "64": {"max_num_batched_tokens": 64},
    "whole": {},
}
CIRCUMSTANCES: dict[str, Sequence[Any]] = {
    "drafter": ["none", "right", "wrong", "mixed", "long", "stops"],
    "chunk": list(CHUNKS),
    "block_size": [1, 4, 16],
    "cache": ["cold", "warm", "off"],
    "room": ["ample", "tight"],
    "processor": ["none", "forbids", "background"],
    "policy": ["fcfs", "priority"],
    "aborts": [False, True],
    "max_num_seqs": [3, 128],
}
COMBINATIONS = list(pairwise(CIRCUMSTANCES))
MAX_TOTAL = 72
"""Prompt and output of every job fit in so many tokens, and a tight cache in hardly more."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def forbid_some(logits: torch.Tensor, tokens: list[int]) -> None:
    """Leaves two tokens of three, which ones depends on all that came before."""
    logits[sum(tokens) % 3 :: 3] = -torch.inf


def draw_params(rng: random.Random, processor: str) -> SamplingParams:
    """Some options out of all, in any company."""

    def some(count: int) -> list[int]:
        return rng.sample(range(VOCAB_SIZE), count)

    words = ["".join(chr(ord("0") + t - 2) for t in rng.sample(range(2, VOCAB_SIZE), rng.choice([1, 1, 2, 3])))
             for _ in range(8)]
    options: dict[str, Any] = {
        "top_k": rng.choice([1, 3, 10, 1000]),
        "top_p": rng.choice([0.3, 0.8, 0.99]),
        "min_p": rng.choice([0.02, 0.2]),
        "presence_penalty": rng.choice([-1.5, 1.5]),
        "frequency_penalty": rng.choice([-0.7, 0.7]),
        "repetition_penalty": rng.choice([0.7, 1.3]),
        "logit_bias": {t: rng.choice([-100.0, -2.0, 2.0, 5.0]) for t in some(5)} | {EOS_TOKEN_ID: 2.0},
        "allowed_token_ids": some(30),
        "bad_words": words,
        "min_tokens": rng.choice([1, 4]),
        "stop_token_ids": some(4),
        "ignore_eos": True,
        "logprobs": rng.choice([0, 3]),
        "prompt_logprobs": rng.choice([0, 2]),
        "n": rng.choice([2, 3]),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.25}
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 2.0]),
        seed=rng.randrange(2**40),
        max_tokens=rng.randint(4, 24),
        priority=rng.randint(-1, 1),
        extra_args={"scripted": None} if processor != "none" else {},
        **chosen,
    )


def draw_jobs(rng: random.Random, processor: str, aborts: bool, count: int) -> list[Job]:
    stem = [rng.randrange(2, VOCAB_SIZE) for _ in range(40)]
    jobs = []
    for _ in range(count):
        prompt = stem[: rng.choice([0, 0, 7, 16, 32, 33])]
        prompt += [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, MAX_TOTAL - 24 - len(prompt) - 8))]
        arrives = rng.choice([0, 0, 0, rng.randint(0, 20)])
        aborted = arrives + rng.randint(0, 25) if aborts and rng.random() < 0.4 else None
        jobs.append(
            Job(prompt=tuple(prompt), params=draw_params(rng, processor), arrives=arrives, aborted=aborted)
        )
    return jobs


class Script:
    """What drafter and processor do in one combination; the drafter knows the naive engine's answers."""

    def __init__(self, drafter: str, processor: str) -> None:
        self.kind = drafter
        self.answers: dict[tuple[str, int], tuple[int, ...]] = {}
        self.pending: list[Future[None]] = []
        self.drafter = ScriptedDrafter(self.propose)
        self.processor = ScriptedProcessor(
            forbid_some, self.wait if processor == "background" else lambda sequence: True
        )

    def wait(self, sequence: SequenceView) -> bool | Future[None]:
        if sequence.sequence_id % 3 == 0:
            return True
        self.pending.append(Future())
        return self.pending[-1]

    def settle(self, step: int) -> None:
        """Background work of one sequence is done after each other step."""
        if self.pending and step % 2:
            future = self.pending.pop(0)
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def learn(self, jobs: Sequence[Job], reference: Reference) -> None:
        self.answers = {
            (f"job-{i}", child): naive.token_ids
            for i, job in enumerate(jobs)
            for child, naive in enumerate(reference.answer(job))
        }

    def propose(self, sequence: SequenceView, most: int) -> Sequence[int]:
        done = len(sequence.output_token_ids)
        right = self.answers[sequence.request.request_id, sequence.child_index][done : done + most]
        wrong = [(token + 1) % VOCAB_SIZE for token in right]
        chance = random.Random(zlib.crc32(sequence.token_ids.tobytes()))
        match self.kind:
            case "right":
                return right
            case "wrong":
                return wrong
            case "mixed":
                return [r if chance.random() < 0.7 else w for r, w in zip(right, wrong, strict=True)]
            case "long":  # too many, and then not even tokens
                return [*right, EOS_TOKEN_ID, 5, 5, *([10**6, -7] * 50)]
            case _:  # stop tokens in the middle, what the model would say after them, and nonsense
                draft = [*right, *([EOS_TOKEN_ID] * most)][:most]
                draft.insert(chance.randrange(len(draft) + 1), chance.choice([EOS_TOKEN_ID, 10**6, -1]))
                return draft


def build(script: Script, combination: dict[str, Any]) -> Any:
    block_size = combination["block_size"]
    num_blocks = {"ample": 900, "tight": MAX_TOTAL + 16}[combination["room"]] // block_size + 1
    return table_llm(
        plugins=[script.drafter, script.processor],
        block_size=block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=combination["cache"] != "off",
        max_num_seqs=combination["max_num_seqs"],
        policy=combination["policy"],
        drafter="none" if script.kind == "none" else "scripted",
        num_draft_tokens=5,
        **CHUNKS[combination["chunk"]],
    )


def describe(combination: dict[str, Any]) -> str:
    return "-".join(f"{value}" for value in combination.values())


@pytest.mark.parametrize("combination", COMBINATIONS, ids=describe)
def test_same_tokens_under_every_circumstance(combination: dict[str, Any]) -> None:
    rng = random.Random(zlib.crc32(describe(combination).encode()))
    jobs = draw_jobs(rng, combination["processor"], combination["aborts"], rng.randint(4, 12))
    script = Script(combination["drafter"], combination["processor"])
    engine = build(script, combination).engine
    change = forbid_some if combination["processor"] != "none" else None
    reference = Reference(table_next_logits, engine, change=change)
    script.learn(jobs, reference)

    outputs: list[RequestOutput] = []
    for _ in range(2 if combination["cache"] == "warm" else 1):
        outputs = run_jobs(engine, jobs, after_step=script.settle)
        for job, output in zip(jobs, outputs, strict=True):
            reference.check(job, output)
        script.pending.clear()
    if combination["cache"] == "warm" and combination["room"] == "ample":
        for job, output in zip(jobs, outputs, strict=True):
            if output.outputs[0].token_ids and job.params.prompt_logprobs is None:
                size = combination["block_size"]
                assert output.metrics.num_cached_tokens >= (len(job.prompt) - 1) // size * size
    check_plugins(script, jobs, outputs, combination)


def check_plugins(script: Script, jobs: list[Job], outputs: list[RequestOutput], combination: dict[str, Any]) -> None:
    """Each sequence is released once; the processor accepted what was committed and nothing else."""
    rounds = 2 if combination["cache"] == "warm" else 1
    num_sequences = rounds * sum(job.params.n for job in jobs)
    if combination["drafter"] != "none":
        assert sorted(script.drafter.released) == list(range(1, num_sequences + 1))
    if combination["processor"] == "none":
        assert not script.processor.released
        return
    assert not script.processor.accepted
    released = dict(script.processor.released)
    assert len(script.processor.released) == num_sequences
    ids = sorted(released)[-num_sequences // rounds :]  # handed out in the order of arrival
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].arrives)
    completions = [completion for i in order for completion in outputs[i].outputs]
    for sequence_id, completion in zip(ids, completions, strict=True):
        assert released[sequence_id] == list(completion.token_ids)


@pytest.mark.parametrize("chunk", list(CHUNKS))
@pytest.mark.parametrize("drafter", ["none", "right", "mixed"])
def test_preemption_changes_nothing(chunk: str, drafter: str) -> None:
    """Twelve sequences in a cache for hardly more than one: preempted for certain, in the middle of their drafts too."""
    rng = random.Random(chunk + drafter)
    combination = {"block_size": 4, "room": "tight", "cache": "cold", "max_num_seqs": 128, "policy": "priority"}
    script = Script(drafter, "forbids")
    engine = build(script, combination | {"chunk": "whole"}).engine  # the budget must not keep others out
    if chunk not in ("1", "whole"):
        engine = build(script, combination | {"chunk": chunk}).engine
    jobs = draw_jobs(rng, "forbids", False, 12)
    reference = Reference(table_next_logits, engine, change=forbid_some)
    script.learn(jobs, reference)
    num_preempted = 0

    def count(step: int) -> None:
        nonlocal num_preempted
        num_preempted += engine.core.last_stats.num_preempted if engine.core.last_stats is not None else 0

    outputs = run_jobs(engine, jobs, after_step=count)
    for job, output in zip(jobs, outputs, strict=True):
        reference.check(job, output)
    assert num_preempted > 0
    assert sum(output.metrics.num_preemptions for output in outputs) == num_preempted
