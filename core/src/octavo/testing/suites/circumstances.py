"""Everything that must not change a token: chunks, blocks, room, rows, warmth, company; and requests to try it with.

Owns: `CIRCUMSTANCES`, `OPTIONS`, `check_in_circumstance` and its parts. Must never know: which plugin is under test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.request import FinishReason, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.spec import SequenceView
from octavo.step import StepStats
from octavo.testing.scripted import ScriptedDrafter
from octavo.testing.suites.subject import no_errors_logged
from octavo.testing.workload import Job, run_jobs

MAX_MODEL_LEN = 96
"""Of every engine here, so that requests meet it."""
CIRCUMSTANCES: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "chunked": {"long_prefill_token_threshold": 7, "max_num_batched_tokens": 30, "block_size": 1, "num_blocks": 2000},
    "one-by-one": {"max_num_seqs": 1, "enable_prefix_caching": False},
    "preempted": {"block_size": 4, "num_blocks": MAX_MODEL_LEN // 4 + 3, "long_prefill_token_threshold": 16},
}
"""Engines by what is special about them, as keywords of `LLM`. All have warm caches in the second round."""
WITH_DRAFTS = (
    ("whole", "none"),
    ("whole", "right"),
    ("chunked", "mixed"),
    ("one-by-one", "none"),
    ("preempted", "mixed"),
)
"""Circumstances, each with a kind of `scripted_drafter`."""
OPTIONS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.8, "n": 3},
    {"temperature": 0.5, "ignore_eos": False},
    {"temperature": 1.0, "min_p": 0.1, "frequency_penalty": 0.7, "presence_penalty": -0.5},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logit_bias": {5: 2.0, 9: -100.0}},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "logprobs": 0},
    {"temperature": 1.0, "allowed_token_ids": [5, 6, 7]},
    {"temperature": 0.0, "max_tokens": 1},
    {"temperature": 0.3, "min_tokens": 6, "stop_token_ids": list(range(2, 20)), "ignore_eos": False},
)
"""One request of each at least."""


def draw_jobs(
    rng: random.Random,
    vocab_size: int,
    fields: Sequence[Mapping[str, Any]] = OPTIONS,
    *,
    max_tokens: int = 24,
    aborts: bool = True,
) -> list[Job]:
    """A request for each of `fields` (of `SamplingParams`) and some more: repetitive, random, short, near the limit."""
    some = [rng.randrange(2, vocab_size) for _ in range(8)]
    prompts = [
        some[:3] * 8,
        [rng.randrange(2, vocab_size) for _ in range(40)],
        some[:1],
        (some * 20)[: MAX_MODEL_LEN - 2],
        some * 4,
    ]
    jobs = []
    for i in range(max(len(fields), len(prompts)) + 2):
        own: dict[str, Any] = {"seed": rng.randrange(2**40), "max_tokens": max_tokens, "ignore_eos": True}
        own.update(fields[i % len(fields)])
        arrives = rng.choice([0, 0, 0, 5])
        aborted = arrives + rng.randint(0, 12) if aborts and i >= len(fields) else None
        prompt = prompts[i % len(prompts)]
        jobs.append(Job(prompt=tuple(prompt), params=SamplingParams(**own), arrives=arrives, aborted=aborted))
    return jobs


class PlainAnswers:
    """What an engine in whose way nothing stands answers to jobs, none of them aborted."""

    def __init__(self, engine: Any, jobs: Sequence[Job]) -> None:
        undisturbed = [replace(job, arrives=0, aborted=None) for job in jobs]
        outputs = run_jobs(engine, undisturbed)
        self._known = {self._key(job): output for job, output in zip(jobs, outputs, strict=True)}

    def answer(self, job: Job) -> RequestOutput:
        return self._known[self._key(job)]

    @staticmethod
    def _key(job: Job) -> str:
        return repr((job.prompt, job.params))

    def check(self, job: Job, output: RequestOutput) -> None:
        """Same tokens, text and reasons; log probabilities up to rounding. What was aborted may be shorter."""
        expected = self.answer(job)
        for found, plain in zip(output.outputs, expected.outputs, strict=True):
            if found.finish_reason is FinishReason.ABORT:
                assert job.aborted is not None, "nobody aborted it"
                assert found.token_ids == plain.token_ids[: len(found.token_ids)]
                continue
            assert found.token_ids == plain.token_ids, f"other tokens than plain decoding; error: {found.error}"
            assert found.error == plain.error
            assert (found.finish_reason, found.stop_reason) == (plain.finish_reason, plain.stop_reason)
            assert found.text == plain.text
            _check_close(found.logprobs, plain.logprobs)
        if output.outputs[0].finish_reason is not FinishReason.ABORT:
            _check_close(output.prompt_logprobs, expected.prompt_logprobs)


def _check_close(found: Sequence[Any] | None, plain: Sequence[Any] | None) -> None:
    assert (found is None) == (plain is None)
    for one, other in zip(found or (), plain or (), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.token_id == other.token_id
            assert abs(one.logprob - other.logprob) < 1e-4


def scripted_drafter(kind: str, answers: PlainAnswers, vocab_size: int) -> ScriptedDrafter:
    """Drafts what plain decoding answers: `right`, or `mixed` with errors, or `random` altogether."""
    error_rate = {"right": 0.0, "mixed": 0.3, "random": 1.0}[kind]

    def propose(view: SequenceView, most: int) -> list[int]:
        job = Job(prompt=tuple(view.prompt_token_ids.tolist()), params=view.request.sampling_params)
        tokens = answers.answer(job).outputs[view.child_index].token_ids
        rng = random.Random(view.token_ids.tobytes())
        said = len(view.output_token_ids)
        return [rng.randrange(vocab_size) if rng.random() < error_rate else t for t in tokens[said : said + most]]

    return ScriptedDrafter(propose)


def check_in_circumstance(
    circumstance: str,
    plain: Any,
    under_test: Callable[..., Any],
    fields: Sequence[Mapping[str, Any]] = OPTIONS,
    *,
    drafter: str = "none",
    same_tokens: bool = True,
) -> tuple[list[StepStats], list[RequestOutput]]:
    """Run jobs twice, cold and warm, in `under_test(**keywords)` and compare with the plain `LLM`.

    `drafter` may be a kind of `scripted_drafter`. Returns the statistics of the steps, and the outputs of both rounds.
    With `same_tokens=False` it is enough that all ends well.
    """
    keywords = {"max_model_len": MAX_MODEL_LEN, **CIRCUMSTANCES[circumstance]}
    vocab_size = plain.engine.inputs._vocab_size
    jobs = draw_jobs(random.Random(circumstance), vocab_size, fields)
    answers = PlainAnswers(plain.engine, jobs)
    if drafter != "none":
        scripted = scripted_drafter(drafter, answers, vocab_size)
        keywords |= {"plugins": [scripted], "drafter": "scripted", "num_draft_tokens": 5}
    engine = under_test(**keywords).engine
    stats: list[StepStats | None] = []
    outputs: list[RequestOutput] = []
    with no_errors_logged():
        for _ in range(2):
            found = run_jobs(engine, jobs, after_step=lambda _: stats.append(engine.core.last_stats))
            outputs += found
            for job, output in zip(jobs, found, strict=True):
                if same_tokens:
                    answers.check(job, output)
    steps = [s for s in stats if s is not None]
    if circumstance == "preempted":
        assert sum(s.num_preempted for s in steps) > 0, "nothing was preempted, so nothing was tested"
    assert any(c.error is None for output in outputs for c in output.outputs), "every request failed"
    engine.shutdown()
    return steps, outputs
