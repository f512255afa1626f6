"""The drafter in an engine: the same tokens with it as without, fewer steps where it can, nothing left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

import octavo_suffix.plugin
from octavo import SamplingParams
from octavo.errors import ConfigError
from octavo.testing.table_model import VOCAB_SIZE, table_llm, table_next_logits
from octavo.testing.workload import Job, Reference, run_jobs

ROOM = {"ample": {}, "tight": {"block_size": 4, "num_blocks": 18}}


def suffix_llm(**keywords: Any) -> Any:
    return table_llm(plugins=[octavo_suffix.plugin], drafter="suffix", **keywords)


def draw_jobs(rng: random.Random) -> list[Job]:
    """Requests that come twice or use few tokens, so that drafts are sometimes right."""
    jobs = []
    for _ in range(5):
        few = rng.sample(range(2, VOCAB_SIZE), 2)
        params = SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.randrange(2**40),
            max_tokens=rng.randint(1, 24),
            n=rng.choice([1, 1, 3]),
            ignore_eos=rng.random() < 0.7,
            frequency_penalty=rng.choice([0.0, 0.5]),
            logprobs=rng.choice([None, 2]),
            **{"allowed_token_ids": few} if rng.random() < 0.5 else {},
        )
        prompt = tuple(rng.choices(few, k=rng.randint(1, 20)))
        aborted = rng.choice([None, None, 20])
        jobs += [
            Job(prompt=prompt, params=params, aborted=aborted),
            Job(prompt=prompt, params=params, arrives=rng.randint(1, 40)),
        ]
    return jobs


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 24])
@pytest.mark.parametrize("room", ROOM)
def test_same_tokens_as_without_drafts(num_draft_tokens: int, room: str) -> None:
    engine = suffix_llm(num_draft_tokens=num_draft_tokens, **ROOM[room]).engine
    reference = Reference(table_next_logits, engine)
    num_accepted = 0

    def count(step: int) -> None:
        nonlocal num_accepted
        num_accepted += engine.core.last_stats.num_accepted_tokens

    jobs = draw_jobs(random.Random(num_draft_tokens))
    for job, output in zip(jobs, run_jobs(engine, jobs, after_step=count), strict=True):
        reference.check(job, output)
    assert num_accepted > 10
    assert not engine.core._executor._drafter._live


def num_steps(engine: Any, jobs: list[Job]) -> int:
    steps: list[int] = []
    run_jobs(engine, jobs, after_step=steps.append)
    return len(steps)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_repeated_task_takes_fewer_steps_and_the_same_tokens(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=60, ignore_eos=True)
    jobs = [Job(prompt=tuple(range(2 + i, 22 + i)), params=params) for i in range(3)]
    engine = suffix_llm(num_draft_tokens=16).engine
    assert num_steps(engine, jobs) >= 60
    assert num_steps(engine, jobs) <= 20
    (output,) = run_jobs(engine, jobs[:1])
    Reference(table_next_logits, engine).check(jobs[0], output)


def test_another_salt_does_not_profit() -> None:
    engine = suffix_llm(num_draft_tokens=16).engine
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)

    def count_steps(salt: str | None) -> int:
        engine.add_request("r", {"prompt_token_ids": list(range(2, 22)), "cache_salt": salt}, params)
        count = 0
        while engine.has_unfinished_requests():
            engine.step()
            count += 1
        return count

    first = count_steps("mine")
    assert count_steps("yours") == first
    assert count_steps(None) == first
    assert count_steps("mine") < first / 2


def test_the_store_can_be_switched_off() -> None:
    jobs = [Job(prompt=tuple(range(2, 22)), params=SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))]
    engine = suffix_llm(num_draft_tokens=16, options={"suffix": {"max_cached_tokens": 0}}).engine
    assert num_steps(engine, jobs) == num_steps(engine, jobs)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"match_lens": []}, "plugins.suffix.match_lens"),
        ({"match_lens": [3, 0]}, "plugins.suffix.match_lens"),
        ({"min_probability": 1.5}, "plugins.suffix.min_probability"),
        ({"max_cached_tokens": -1}, "plugins.suffix.max_cached_tokens"),
        ({"max_cached": 5}, "unknown option 'plugins.suffix.max_cached'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        suffix_llm(options={"suffix": options})
