"""The same tokens under every circumstance: the table model against the naive engine, to the bit.

Every pair of circumstances meets in some combination (chunk size, block size, cache, room, drafter, processor,
queue, aborts), each with a mix of requests drawn by the combination's own seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.request import FinishReason, RequestOutput
from octavo.spec import SequenceView
from octavo.step import StepStats
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

    words = [
        "".join(chr(ord("0") + t - 2) for t in rng.sample(range(2, VOCAB_SIZE), rng.choice([1, 1, 2, 3])))
        for _ in range(8)
    ]
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
        extra_args={"scripted": True} if processor != "none" else {},
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
        jobs.append(Job(prompt=tuple(prompt), params=draw_params(rng, processor), arrives=arrives, aborted=aborted))
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
            case "none":
                return ()
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
    jobs = draw_jobs(rng, combination["processor"], combination["aborts"], rng.randint(1, 12))
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


@pytest.mark.parametrize("threshold", [0, 7, *(pytest.param(t, marks=pytest.mark.slow) for t in (1, 16, 64))])
@pytest.mark.parametrize("drafter", ["none", "right", "mixed"])
def test_preemption_changes_nothing(threshold: int, drafter: str) -> None:
    """Ten sequences at once in a cache for hardly more than one: preempted for certain, also while they have drafts."""
    script = Script(drafter, "forbids")
    llm = table_llm(
        plugins=[script.drafter, script.processor],
        block_size=4,
        num_blocks=MAX_TOTAL // 4 + 2,
        long_prefill_token_threshold=threshold,
        drafter="none" if drafter == "none" else "scripted",
    )
    engine = llm.engine
    jobs = [replace(job, arrives=0) for job in draw_jobs(random.Random(threshold), "forbids", False, 10)]
    reference = Reference(table_next_logits, engine, change=forbid_some)
    script.learn(jobs, reference)
    num_preempted = []

    outputs = run_jobs(engine, jobs, after_step=lambda _: num_preempted.append(engine.core.last_stats.num_preempted))
    for job, output in zip(jobs, outputs, strict=True):
        reference.check(job, output)
    assert sum(num_preempted) > 0
    assert sum(output.metrics.num_preemptions for output in outputs) == sum(num_preempted)


def test_right_drafts_are_all_accepted_and_save_steps() -> None:
    def stats_with(drafter: str) -> list[StepStats]:
        script = Script(drafter, "none")
        engine = table_llm(plugins=[script.drafter], drafter="scripted", num_draft_tokens=4).engine
        reference = Reference(table_next_logits, engine)
        jobs = [
            Job(prompt=(i + 2, 9), params=SamplingParams(temperature=t, seed=i, max_tokens=30, n=2, logprobs=1))
            for i, t in enumerate([0.0, 1.0, 0.7, 2.0])
        ]
        script.learn(jobs, reference)
        stats: list[StepStats] = []
        outputs = run_jobs(engine, jobs, after_step=lambda _: stats.append(engine.core.last_stats))
        for job, output in zip(jobs, outputs, strict=True):
            reference.check(job, output)
        return stats

    plain, drafted = stats_with("none"), stats_with("right")
    assert sum(s.num_draft_tokens for s in plain) == 0
    assert sum(s.num_draft_tokens for s in drafted) == sum(s.num_accepted_tokens for s in drafted) > 100
    assert len(drafted) <= len(plain) // 4


@pytest.mark.parametrize("drafter", ["none", "right", "wrong"])
def test_bad_words_that_begin_in_drafts(drafter: str) -> None:
    """Each word is what the model would say next, so that its end must be forbidden behind its beginning."""
    script = Script(drafter, "none")
    engine = table_llm(plugins=[script.drafter], drafter="scripted", num_draft_tokens=5).engine
    reference = Reference(table_next_logits, engine)
    job = Job(prompt=(5, 6), params=GREEDY.replace(max_tokens=24, ignore_eos=True))
    for start, length in ((1, 2), (5, 3), (9, 2), (12, 4), (17, 2), (20, 3)):
        said = reference.answer(job)[0].token_ids[start : start + length]
        word = "".join(chr(ord("0") + token - 2) for token in said)
        job = Job(prompt=job.prompt, params=job.params.replace(bad_words=[*job.params.bad_words, word]))
    script.learn([job], reference)
    reference.check(job, run_jobs(engine, [job])[0])


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33])
@pytest.mark.parametrize("drafter", ["none", "right"])
def test_prompt_that_is_cached_as_a_whole(length: int, drafter: str) -> None:
    """At least one token is computed, whatever is cached, and repeats equal the cold run."""
    script = Script(drafter, "none")
    llm = table_llm(plugins=[script.drafter], drafter="none" if drafter == "none" else "scripted")
    reference = Reference(table_next_logits, llm.engine)
    prompt = tuple(2 + i * i % 60 for i in range(length))
    params = SamplingParams(temperature=1.0, seed=length, max_tokens=20, logprobs=2, ignore_eos=True)
    cached = []
    for tokens in (prompt, prompt, prompt, (*prompt, 3)):
        jobs = [Job(prompt=tokens, params=params)]
        script.learn(jobs, reference)
        output = run_jobs(llm.engine, jobs)[0]
        reference.check(jobs[0], output)
        cached.append(output.metrics.num_cached_tokens)
    assert cached == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16, length // 16 * 16]


def test_background_work_that_fails_ends_its_request_alone() -> None:
    futures: list[Future[None]] = []

    def attach(sequence: SequenceView) -> bool | Future[None]:
        if sequence.request.sampling_params.extra_args["scripted"] == "refuse":
            raise ValueError("this one never")
        futures.append(Future())
        return futures[-1]

    def settle(step: int) -> None:
        if step == 3:
            futures[0].set_exception(ValueError("no such grammar"))
            futures[1].set_result(None)
            futures[2].cancel()

    processor = ScriptedProcessor(forbid_some, attach)
    engine = table_llm(plugins=[processor]).engine
    params = GREEDY.replace(extra_args={"scripted": True})
    jobs = [Job(prompt=(5, 6, 7 + i), params=params) for i in range(3)]
    jobs += [
        Job(prompt=(9, 9), params=GREEDY),
        Job(prompt=(9, 9), params=params.replace(extra_args={"scripted": "refuse"})),
    ]
    outputs = run_jobs(engine, jobs, after_step=settle)
    for i, part in ((0, "no such grammar"), (2, "Cancelled"), (4, "this one never")):
        assert outputs[i].outputs[0].finish_reason is FinishReason.ERROR
        assert part in (outputs[i].outputs[0].error or "")
    Reference(table_next_logits, engine, change=forbid_some).check(jobs[1], outputs[1])
    Reference(table_next_logits, engine).check(jobs[3], outputs[3])
    assert sorted(sequence_id for sequence_id, _ in processor.released) == [1, 2, 3]


def test_seeded_request_does_not_depend_on_its_company() -> None:
    seeded = SamplingParams(temperature=0.8, seed=42, ignore_eos=True, max_tokens=16)
    unseeded = seeded.replace(seed=None)
    llm = table_llm(block_size=4, num_blocks=30)  # with seven mates some are preempted
    prompt = [5, 6, 7, 8, 9]
    alone = llm.generate([prompt], seeded)[0].outputs[0].token_ids
    for _ in range(4):
        for before, after in ((0, 1), (1, 0), (3, 4)):
            mates = [[20 + i] * 9 for i in range(before + after)]
            params = [unseeded] * before + [seeded] + [unseeded] * after
            outputs = llm.generate([*mates[:before], prompt, *mates[before:]], params)
            assert outputs[before].outputs[0].token_ids == alone
    others = {llm.generate([prompt], seeded.replace(seed=s))[0].outputs[0].token_ids for s in range(5)}
    assert len(others) == 5


def test_every_completion_of_a_request_is_there() -> None:
    llm = table_llm()
    output = llm.generate([[5, 6]], SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=12, ignore_eos=True))[0]
    assert [c.index for c in output.outputs] == list(range(8))
    assert len({c.token_ids for c in output.outputs}) == 8
    assert all(c.finish_reason is FinishReason.LENGTH for c in output.outputs)


@pytest.mark.parametrize("drafter", ["none", "right"])
def test_request_id_is_used_anew_after_an_abort(drafter: str) -> None:
    script = Script(drafter, "none")
    engine = table_llm(plugins=[script.drafter], drafter="none" if drafter == "none" else "scripted").engine
    long, short = GREEDY.replace(max_tokens=64, ignore_eos=True), GREEDY.replace(max_tokens=3, ignore_eos=True)
    reference = Reference(table_next_logits, engine)
    script.learn([Job(prompt=(5, 6), params=long)], reference)
    script.answers["x", 0] = script.answers["job-0", 0]
    expected = reference.answer(Job(prompt=(5, 6), params=short))[0].token_ids
    for turn in range(200):
        engine.add_request("x", [5, 6], long)
        if turn % 3:  # also abort what never ran
            engine.step()
        with pytest.raises(InvalidRequestError):
            engine.add_request("x", [5, 6], short)
        assert engine.abort_request("x")
        assert not engine.abort_request("x")
        engine.add_request("x", [5, 6], short)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
            engine.check_integrity()
        assert outputs[-1].outputs[0].token_ids == expected
        assert [o.outputs[0].finish_reason for o in outputs if o.finished] == [FinishReason.LENGTH]
    assert not engine.abort_request("unknown")
    check_nothing_left(engine)


@pytest.mark.parametrize("drafter", ["none", "stops"])
@pytest.mark.parametrize("min_tokens", [0, 1, 4])
@pytest.mark.parametrize("stop", ["eos", "id", "string"])
def test_min_tokens(min_tokens: int, stop: str, drafter: str) -> None:
    """Exactly `min_tokens` tokens and then the stop, where everything pulls towards the stop."""
    wanted = EOS_TOKEN_ID if stop == "eos" else 7
    script = Script(drafter, "none")
    llm = table_llm(plugins=[script.drafter], drafter="none" if drafter == "none" else "scripted")
    params = SamplingParams(
        temperature=0.0, max_tokens=32, min_tokens=min_tokens, logit_bias={wanted: 100.0},
        stop_token_ids=[wanted] if stop == "id" else [], stop=["5"] if stop == "string" else [],
    )  # fmt: skip
    script.answers["llm-0", 0] = (wanted,) * 40
    completion = llm.generate([[9, 9]], params)[0].outputs[0]
    assert completion.finish_reason is FinishReason.STOP
    assert len(completion.token_ids) == min_tokens + 1
    assert completion.stop_reason == {"eos": None, "id": wanted, "string": "5"}[stop]
    if stop == "string":  # the string itself may be said before
        assert set(completion.token_ids) == {wanted}
    else:
        assert completion.token_ids.index(wanted) == min_tokens
    if stop == "eos":
        script.answers["llm-1", 0] = (wanted,) * 40
        ignoring = llm.generate([[9, 9]], params.replace(ignore_eos=True))[0].outputs[0]
        assert ignoring.token_ids == (wanted,) * 32
    check_nothing_left(llm.engine)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-10, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperature_is_greedy_and_harms_nobody(temperature: float) -> None:
    llm = table_llm()
    mate = SamplingParams(temperature=1.0, seed=3, max_tokens=12)
    greedy, alone = (llm.generate([[5, 6]], params)[0].outputs[0].token_ids for params in (GREEDY, mate))
    for top_p in (1.0, 1e-4, 1e-10):
        tiny = GREEDY.replace(temperature=temperature, top_p=top_p, seed=9)
        outputs = llm.generate([[5, 6], [5, 6]], [tiny, mate])
        assert [o.outputs[0].token_ids for o in outputs] == [greedy, alone]


def test_the_comparison_notices_one_wrong_slot() -> None:
    """The suite can fail: one token id changed in the cache changes what comes after."""
    llm = table_llm(block_size=4)
    jobs = [Job(prompt=(5, 6, 7, 8, 9, 10), params=GREEDY.replace(ignore_eos=True))]
    layer = llm.engine.core._executor._model.attention

    def corrupt(step: int) -> None:
        if step == 2:
            layer.kv_cache.view(-1, 2)[4 + 1] += 1  # block 1 is the first one; its second token

    outputs = run_jobs(llm.engine, jobs, after_step=corrupt)
    reference = Reference(table_next_logits, llm.engine)
    with pytest.raises(AssertionError):
        reference.check(jobs[0], outputs[0])
    assert outputs[0].outputs[0].token_ids[:3] == reference.answer(jobs[0])[0].token_ids[:3]
