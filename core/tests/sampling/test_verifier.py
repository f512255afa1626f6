"""The exact verifier: drafts change how many tokens a step gives, never which."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from octavo import SamplingParams
from octavo.sampling.randomness import row_keys
from octavo.sampling.sampler import sample
from octavo.sampling.verifier import ExactVerifier
from octavo.spec import VerifyRows

VOCAB = 12


def logits_after(tokens: tuple[int, ...]) -> torch.Tensor:
    """A toy language: the next token's logits are a function of the tokens so far."""
    seed = hash(tokens) % 2**31
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


def draw_one(tokens: tuple[int, ...], params: SamplingParams, seed: int, child: int) -> int:
    key = row_keys(np.array([seed], dtype=np.uint64), np.array([child]), np.array([len(tokens)]))
    return int(sample(logits_after(tokens).unsqueeze(0), [params], key)[0])


def verify(jobs: list[tuple[tuple[int, ...], tuple[int, ...], SamplingParams, int, int]]) -> list[list[int]]:
    """Jobs are (tokens so far, drafts, params, seed, child)."""
    rows = [(tokens, drafts[:i]) for tokens, drafts, *_ in jobs for i in range(len(drafts) + 1)]
    request = VerifyRows(
        row_start=np.cumsum([0, *(len(d) + 1 for _, d, *_ in jobs)]),
        draft_token_ids=np.array([t for _, d, *_ in jobs for t in (*d, -1)]),
        draft_probs={},
        params=[p for *_, p, _, _ in jobs],
        seeds=np.array([s for *_, s, _ in jobs], dtype=np.uint64),
        child_indices=np.array([c for *_, c in jobs]),
        positions=np.array([len(t) + len(d) for t, d in rows]),
    )
    logits = torch.stack([logits_after((*t, *d)) for t, d in rows])
    return [list(tokens) for tokens in ExactVerifier().verify(logits, request)]


@pytest.mark.parametrize("seed", range(10))
def test_drafts_are_accepted_exactly_as_far_as_they_equal_what_would_be_drawn(seed: int) -> None:
    rng = random.Random(seed)
    jobs = []
    for number in range(8):
        params = SamplingParams(temperature=rng.choice([0.0, 0.7, 1.5]), top_k=rng.choice([0, 3]))
        tokens = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 5)))
        drafts: list[int] = []
        for _ in range(rng.randint(0, 5)):
            right = draw_one((*tokens, *drafts), params, number, number % 3)
            drafts.append(right if rng.random() < 0.7 else rng.randrange(VOCAB))
        jobs.append((tokens, tuple(drafts), params, number, number % 3))
    for job, got in zip(jobs, verify(jobs), strict=True):
        tokens, drafts, params, number, child = job
        wanted: list[int] = []
        for draft in (*drafts, None):
            wanted.append(draw_one((*tokens, *wanted), params, number, child))
            if wanted[-1] != draft:
                break
        assert got == wanted


def test_right_drafts_are_all_accepted_and_a_bonus_token_comes_on_top() -> None:
    tokens, drafts = (1, 2), ()
    for _ in range(4):
        drafts = (*drafts, draw_one((*tokens, *drafts), SamplingParams(), 5, 0))
    (got,) = verify([(tokens, drafts, SamplingParams(), 5, 0)])
    assert tuple(got[:4]) == drafts
    assert len(got) == 5


def test_zero_drafts_is_plain_sampling() -> None:
    jobs = [((i, 3), (), SamplingParams(), i, 0) for i in range(20)]
    assert verify(jobs) == [[draw_one(t, p, s, c)] for t, _, p, s, c in jobs]


@pytest.mark.parametrize("habit", ["likeliest", "constant", "last"])
def test_drafts_leave_the_distribution_of_pairs_of_tokens_as_it_is(habit: str, fits) -> None:
    num, params, start = 6000, SamplingParams(), (4,)
    first = logits_after(start).double().softmax(-1)
    expected = torch.stack([first[t] * logits_after((*start, t)).double().softmax(-1) for t in range(VOCAB)])
    draft = {"likeliest": int(first.argmax()), "constant": 0, "last": start[-1]}[habit]
    counts = np.zeros((VOCAB, VOCAB))
    accepted = 0
    results = verify([(start, (draft,), params, seed, 0) for seed in range(num)])
    rejected = [(seed, got[0]) for seed, got in enumerate(results) if len(got) == 1]
    seconds = verify([((*start, token), (), params, seed, 0) for seed, token in rejected])
    for got in results:
        if len(got) == 2:
            accepted += 1
            counts[got[0], got[1]] += 1
    for (_, token), (second,) in zip(rejected, seconds, strict=True):
        counts[token, second] += 1
    assert fits(counts.ravel(), expected.numpy().ravel() * num)
    assert accepted / num == pytest.approx(float(first[draft]), abs=0.03)
