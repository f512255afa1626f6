"""Requests that arrive and are withdrawn while an engine steps, and what must be true of it all the while.

    jobs = [Job(prompt=(5, 6, 7), params=SamplingParams(temperature=0)), ...]
    reference = Reference(table_next_logits, engine)
    for job, output in zip(jobs, run_jobs(engine, jobs)):
        reference.check(job, output)

A plugin that passes this with the table model, whatever the mix of jobs, composes with the rest of the engine.
Owns: `Job`, `run_jobs`, `Reference`. Must never know: which plugins are under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo.request import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs
from octavo.runner.model_runner import ModelRunner
from octavo.sampling_params import SamplingParams
from octavo.testing.naive import Change, NaiveOutput, NextLogits, naive_generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request and when it comes."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int = 0
    """Number of steps before it is added."""
    aborted: int | None = None
    """Number of steps before it is aborted; None: never. Not before it arrives."""


def run_jobs(
    engine: Any, jobs: Sequence[Job], *, after_step: Callable[[int], None] = lambda step: None, max_steps: int = 5000
) -> list[RequestOutput]:
    """The last output of each job, in order; `engine` is an idle `LLMEngine`. Job i is request `"job-i"`.

    After each step the engine's books are checked and outputs must continue what was shown before; at the end
    nothing may be left anywhere. Raises `AssertionError`, also after `max_steps`.
    """
    shown: dict[str, RequestOutput] = {}
    for step in range(max_steps):
        for i, job in enumerate(jobs):
            if job.arrives == step:
                engine.add_request(f"job-{i}", list(job.prompt), job.params)
            if job.aborted == step:
                engine.abort_request(f"job-{i}")
        for output in engine.step():
            _check_continues(shown.get(output.request_id), output)
            shown[output.request_id] = output
        engine.check_integrity()
        after_step(step)
        if len(shown) == len(jobs) and all(output.finished for output in shown.values()):
            check_nothing_left(engine)
            return [shown[f"job-{i}"] for i in range(len(jobs))]
    raise AssertionError(f"{len(jobs)} jobs are not done after {max_steps} steps")


def _check_continues(before: RequestOutput | None, now: RequestOutput) -> None:
    if before is None:
        return
    assert not before.finished, f"{now.request_id} has an output after its last one"
    for old, new in zip(before.outputs, now.outputs, strict=True):
        assert new.token_ids[: len(old.token_ids)] == old.token_ids, "tokens that were shown have changed"
        assert new.text.startswith(old.text), "text that was shown has changed"


def check_nothing_left(engine: Any) -> None:
    """An idle engine holds nothing of any request, nor does a runner in this process. Raises `AssertionError`."""
    assert not engine.has_unfinished_requests()
    assert not engine.core.has_work
    engine.check_integrity()
    runner = engine.core._executor
    if not isinstance(runner, ModelRunner):
        return
    assert not runner._batch.sequences, "the runner still holds sequences"
    assert len(runner._batch._free_rows) == runner._config.scheduler.max_num_seqs, "the runner lost rows"
    chain = runner._processors
    assert not chain._attached, "processors are still attached"
    assert not chain._pending, "processors are still waited for"
    for name, processor in chain._processors.items():
        assert not getattr(processor, "_states", None), f"processor {name} still holds sequences"


class Reference:
    """What the naive engine answers to a job. Answers are kept, so a job may be checked often."""

    def __init__(
        self,
        next_logits: NextLogits,
        engine: Any,
        *,
        change: Change | None = None,
        num_valid_tokens: int | None = None,
    ) -> None:
        """`change` does to a row of logits what the processor under test does; lengths and ids are the engine's."""
        self._next_logits, self._change = next_logits, change
        self._tokenizer = engine.tokenizer
        self._max_model_len = engine.max_model_len
        self._eos_token_ids = engine.inputs._eos_token_ids
        self._num_valid_tokens = num_valid_tokens
        self._known: dict[str, tuple[NaiveOutput, ...]] = {}

    def answer(self, job: Job) -> tuple[NaiveOutput, ...]:
        """One output for each of the `n` completions."""
        key = repr((job.prompt, job.params))
        if key not in self._known:
            self._known[key] = tuple(self._complete(job, index) for index in range(job.params.n))
        return self._known[key]

    def _complete(self, job: Job, child_index: int) -> NaiveOutput:
        words = [text for word in job.params.bad_words for text in (word, " " + word)]
        return naive_generate(
            self._next_logits,
            job.prompt,
            job.params,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._max_model_len,
            bad_words=[self._tokenizer.encode(text, add_special_tokens=False) for text in words],
            child_index=child_index,
            num_valid_tokens=self._num_valid_tokens,
            change=self._change,
        )

    def check(self, job: Job, output: RequestOutput, tolerance: float = 1e-4) -> None:
        """Same tokens and finish reason; log probabilities within `tolerance`. An aborted job may be shorter."""
        answer = self.answer(job)
        assert [c.index for c in output.outputs] == list(range(job.params.n))
        for completion, naive in zip(output.outputs, answer, strict=True):
            _check_completion(job, completion, naive, tolerance)
        if job.params.prompt_logprobs is not None and output.outputs[0].finish_reason is not FinishReason.ABORT:
            assert output.prompt_logprobs is not None
            assert output.prompt_logprobs[0] is None
            positions = zip(output.prompt_logprobs[1:], job.prompt[1:], answer[0].prompt_distributions, strict=True)
            for found, token_id, distribution in positions:
                check_logprobs(found, token_id, distribution, job.params.prompt_logprobs, tolerance)


def _check_completion(job: Job, completion: CompletionOutput, naive: NaiveOutput, tolerance: float) -> None:
    expected = naive.token_ids
    if completion.finish_reason is FinishReason.ABORT:
        assert job.aborted is not None, "nobody aborted it"
        expected = expected[: len(completion.token_ids)]
    else:
        assert completion.finish_reason == naive.finish_reason, completion.error
    assert completion.token_ids == expected
    if job.params.logprobs is None:
        assert completion.logprobs is None
        return
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(expected)
    for found, token_id, distribution in zip(completion.logprobs, expected, naive.distributions, strict=False):
        check_logprobs(found, token_id, distribution, job.params.logprobs, tolerance)


def check_logprobs(
    found: TokenLogprobs | None,
    token_id: int,
    distribution: torch.Tensor,  # [vocab_size] log probabilities
    num_top: int,
    tolerance: float,
) -> None:
    """Token, rank and the `num_top` best agree with `distribution`, up to what `tolerance` may swap."""
    assert found is not None, "a position has no log probabilities"
    assert found.token_id == token_id
    logprob = float(distribution[token_id])
    assert abs(found.logprob - logprob) <= tolerance
    ranks = [1 + int((distribution > logprob + sign * tolerance).sum()) for sign in (2, -2)]
    assert ranks[0] <= found.rank <= ranks[1]
    best = distribution.topk(num_top).values.tolist()
    assert len({i for i, _ in found.top}) == len(found.top) == num_top
    for (top_id, value), expected in zip(found.top, best, strict=True):
        assert abs(value - expected) <= tolerance
        assert abs(value - float(distribution[top_id])) <= tolerance


def pairwise(choices: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Few combinations that hold each pair of values of any two factors. Greedy; same choices, same combinations."""
    names = list(choices)
    index = {
        (a, b): {(x, y) for x in range(len(choices[a])) for y in range(len(choices[b]))}
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    while any(index.values()):
        (a, b), missing = max(index.items(), key=lambda item: len(item[1]))
        row = dict(zip((a, b), min(missing), strict=True))
        for name in (n for n in names if n not in row):
            row[name] = max(range(len(choices[name])), key=lambda v: _num_new(index, row, name, v))
        for a, b in index:
            index[a, b].discard((row[a], row[b]))
        yield {name: choices[name][row[name]] for name in names}


def _num_new(index: dict[tuple[str, str], set[tuple[int, int]]], row: dict[str, int], name: str, value: int) -> int:
    pairs = [((other, name), (row[other], value)) for other in row] + [((name, o), (value, row[o])) for o in row]
    return sum(pair in index.get(key, ()) for key, pair in pairs)
