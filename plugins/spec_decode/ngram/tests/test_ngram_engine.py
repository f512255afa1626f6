"""The drafter in an engine: the same tokens with it as without, fewer steps, nothing left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

import octavo_ngram.plugin
from octavo import SamplingParams
from octavo.errors import ConfigError
from octavo.step import StepStats
from octavo.testing.table_model import VOCAB_SIZE, table_llm, table_next_logits
from octavo.testing.workload import Job, Reference, run_jobs

ROOM = {"ample": {}, "tight": {"block_size": 4, "num_blocks": 18}}


def ngram_llm(**keywords: Any) -> Any:
    return table_llm(plugins=[octavo_ngram.plugin], drafter="ngram", **keywords)


def draw_jobs(rng: random.Random) -> list[Job]:
    """Requests whose tokens come from few, so that they repeat themselves and drafts are sometimes right."""
    jobs = []
    for _ in range(6):
        few = rng.sample(range(2, VOCAB_SIZE), rng.choice([1, 2, 3]))
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
            seed=rng.randrange(2**40),
            max_tokens=rng.randint(1, 24),
            n=rng.choice([1, 1, 2]),
            ignore_eos=True,
            stop_token_ids=few[2:] if rng.random() < 0.3 else [],
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
            logprobs=rng.choice([None, 2]),
            **{"allowed_token_ids": few} if rng.random() < 0.8 else {},
        )
        aborted = rng.choice([None, None, None, 20])
        prompt = tuple(rng.choices(few, k=rng.randint(1, 30)))
        jobs.append(Job(prompt=prompt, params=params, arrives=rng.choice([0, 0, 5]), aborted=aborted))
    return jobs


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 16])
@pytest.mark.parametrize("chunk", [5, 2048])
@pytest.mark.parametrize("room", ROOM)
def test_same_tokens_as_without_drafts(num_draft_tokens: int, chunk: int, room: str) -> None:
    engine = ngram_llm(num_draft_tokens=num_draft_tokens, long_prefill_token_threshold=chunk, **ROOM[room]).engine
    reference = Reference(table_next_logits, engine)
    stats: list[StepStats] = []
    jobs = draw_jobs(random.Random(num_draft_tokens))
    outputs = run_jobs(engine, jobs, after_step=lambda _: stats.append(engine.core.last_stats))
    for job, output in zip(jobs, outputs, strict=True):
        reference.check(job, output)
    assert not engine.core._executor._drafter._indices
    assert sum(s.num_draft_tokens for s in stats) > sum(s.num_accepted_tokens for s in stats) > 10
    assert (sum(s.num_preempted for s in stats) > 0) == (room == "tight")


def test_text_that_repeats_itself_takes_a_fifth_of_the_steps() -> None:
    def num_steps(llm: Any) -> int:
        engine, steps = llm.engine, []
        params = SamplingParams(temperature=0.0, max_tokens=100, allowed_token_ids=[9], ignore_eos=True)
        [output] = run_jobs(engine, [Job(prompt=(9, 9, 9), params=params)], after_step=steps.append)
        assert output.outputs[0].token_ids == (9,) * 100
        return len(steps)

    assert num_steps(ngram_llm(num_draft_tokens=4)) <= num_steps(table_llm()) // 5 + 2


def test_options_reach_the_drafter() -> None:
    drafter = ngram_llm(options={"ngram": {"min_n": 3, "max_n": 3}}).engine.core._executor._drafter
    assert (drafter._min_n, drafter._max_n) == (3, 3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_n": 4, "max_n": 3}, "plugins.ngram: min_n is 4 but max_n is 3; .*min_n <= max_n"),
        ({"min_n": 9}, "min_n is 9 but max_n is 5"),
        ({"min_n": 0}, "plugins.ngram.min_n"),
        ({"max_n": 65}, "plugins.ngram.max_n"),
        ({"max": 3}, "unknown option 'plugins.ngram.max'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ngram_llm(options={"ngram": options})
