"""The rejection rule: distributions stay the target's, whatever the drafts were drawn from."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from octavo import SamplingParams
from octavo.sampling.randomness import Purpose, coins, exponential_noise, row_keys
from octavo.sampling.rejection import RejectionVerifier
from octavo.sampling.sampler import truncate
from octavo.sampling.verifier import ExactVerifier
from octavo.spec import VerifyRows

VOCAB, NUM = 8, 5_000
OPTIONS = {
    "plain": SamplingParams(),
    "hot": SamplingParams(temperature=1.7),
    "min_p": SamplingParams(min_p=0.2),
    "top_k": SamplingParams(top_k=3),
    "top_p": SamplingParams(top_p=0.7),
    "all": SamplingParams(temperature=0.8, min_p=0.05, top_k=5, top_p=0.9),
}


@cache
def logits_after(*tokens: int) -> torch.Tensor:
    """A toy language: the next token's logits are a function of the tokens so far."""
    seed = sum((t + 1) * 31**i for i, t in enumerate(tokens))
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


def target(params: SamplingParams, *tokens: int) -> torch.Tensor:
    return truncate(logits_after(*tokens).unsqueeze(0), [params])[0].double().softmax(-1)


def draft_distribution(kind: str, params: SamplingParams, *tokens: int) -> torch.Tensor | None:
    if kind == "certain":
        return None
    if kind == "same":
        return target(params, *tokens).float()
    q = ((logits_after(*tokens) + logits_after(*tokens, 5)) / 2).softmax(-1)
    if kind == "zeros":
        q[[1, 3, 4]] = 0.0
        q /= q.sum()
    return q


def draw(probs: torch.Tensor | None, seeds: np.ndarray, position: int) -> np.ndarray:
    """A draft for each seed; where none has a distribution, always token 2."""
    if probs is None:
        return np.full(len(seeds), 2)
    keys = row_keys(seeds, np.zeros(len(seeds)), np.full(len(seeds), position), Purpose.DRAFT)
    return (probs / exponential_noise(keys, torch.arange(VOCAB))).argmax(-1).numpy()


def rows_of(drafts: list[list[int]], probs: dict[int, torch.Tensor], params, seeds, first: int) -> VerifyRows:
    lengths = [len(d) + 1 for d in drafts]
    return VerifyRows(
        row_start=np.cumsum([0, *lengths]),
        draft_token_ids=np.array([t for d in drafts for t in (*d, -1)], dtype=np.int64),
        draft_probs=probs,
        params=params,
        seeds=np.asarray(seeds, dtype=np.uint64),
        child_indices=np.zeros(len(drafts), dtype=np.int64),
        positions=np.concatenate([first + np.arange(n) for n in lengths]),
    )


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["wrong", "same", "certain", "zeros"])
def test_a_token_is_distributed_as_the_target_and_accepted_as_often_as_can_be(kind: str, option: str, fits) -> None:
    params, seeds = OPTIONS[option], np.arange(NUM, dtype=np.uint64)
    p, q = target(params, 4), draft_distribution(kind, params, 4)
    drafts = draw(q, seeds, 1)
    probs = {} if q is None else dict.fromkeys(range(NUM), q.unsqueeze(0))
    rows = rows_of([[int(d)] for d in drafts], probs, [params] * NUM, seeds, 1)
    after = torch.stack([logits_after(4, token) for token in range(VOCAB)])
    logits = torch.stack([logits_after(4).expand(NUM, -1), after[drafts]], dim=1).reshape(2 * NUM, VOCAB)
    found = RejectionVerifier().verify(logits, rows)
    counts = np.bincount([tokens[0] for tokens in found], minlength=VOCAB)
    assert fits(counts, p.numpy() * NUM)
    one_hot = torch.nn.functional.one_hot(torch.tensor(2), VOCAB).double()
    most = float(torch.minimum(p, one_hot if q is None else q.double()).sum())
    assert np.mean([len(tokens) == 2 for tokens in found]) == pytest.approx(most, abs=0.035)
    for tokens, draft in zip(found, drafts, strict=True):
        assert len(tokens) == 1 or tokens[0] == draft
    if kind in ("wrong", "zeros"):
        assert 0.02 < most < 0.98, "the case tests nothing"


@pytest.mark.parametrize("kind", ["wrong", "zeros"])
def test_three_tokens_are_jointly_distributed_as_the_target(kind: str, fits) -> None:
    """Two drafts in one proposal; what is missing to three tokens is drawn in later steps, with new drafts."""
    params, num = OPTIONS["top_k"], 4000
    seeds = np.arange(num, dtype=np.uint64)
    tokens: list[list[int]] = [[4] for _ in range(num)]
    while unfinished := [i for i in range(num) if len(tokens[i]) < 4]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in unfinished:
            groups.setdefault(tuple(tokens[i]), []).append(i)
        for history, members in groups.items():
            own = seeds[members]
            first = draft_distribution(kind, params, *history)
            drafts = [[int(d)] for d in draw(first, own, len(history))]
            second = [draft_distribution(kind, params, *history, d) for d in range(VOCAB)]
            options = [draw(q, own, len(history) + 1) for q in second]
            both = [torch.stack([first, q]) for q in second]
            probs = {n: both[d] for n, (d,) in enumerate(drafts)}
            drafts = [[d, int(options[d][n])] for n, (d,) in enumerate(drafts)]
            logits = torch.stack([logits_after(*history, *d[:j]) for d in drafts for j in range(3)])
            rows = rows_of(drafts, probs, [params] * len(members), own, len(history))
            for i, new in zip(members, RejectionVerifier().verify(logits, rows), strict=True):
                tokens[i] += new
    counts = np.zeros((VOCAB,) * 3)
    for t in tokens:
        counts[t[1], t[2], t[3]] += 1
    expected = np.zeros((VOCAB,) * 3)
    for a in range(VOCAB):
        for b in range(VOCAB):
            pair = float(target(params, 4)[a] * target(params, 4, a)[b])
            expected[a, b] = pair * target(params, 4, a, b).numpy()
    assert fits(counts.ravel(), expected.ravel() * num)


def test_without_drafts_the_tokens_are_those_of_the_exact_rule() -> None:
    options = [*OPTIONS.values(), SamplingParams(temperature=0)]
    params = [options[i % len(options)] for i in range(200)]
    logits = torch.stack([logits_after(i, 7) for i in range(200)])
    rows = rows_of([[]] * 200, {}, params, np.arange(200), 3)
    assert RejectionVerifier().verify(logits.clone(), rows) == ExactVerifier().verify(logits.clone(), rows)


def test_greedy_rows_take_the_likeliest_tokens_whatever_the_drafts() -> None:
    greedy, best = SamplingParams(temperature=0), [int(logits_after(4).argmax())]
    for _ in range(3):
        best.append(int(logits_after(4, *best).argmax()))
    wrong = [(token + 1) % VOCAB for token in best]
    jobs = [best[:3], [*best[:2], wrong[2]], [best[0], wrong[1], best[2]], [wrong[0], 0, 0], []]
    uniform = torch.full((3, VOCAB), 1 / VOCAB)
    for probs in ({}, {0: uniform, 1: uniform, 2: uniform[:1], 3: uniform}):
        logits = torch.stack([logits_after(4, *d[:j]) for d in jobs for j in range(len(d) + 1)])
        found = RejectionVerifier().verify(logits, rows_of(jobs, probs, [greedy] * 5, [1, 2, 3, 4, 5], 1))
        assert found == [best, best[:3], best[:2], best[:1], best[:1]]


def test_rows_are_independent() -> None:
    rng = np.random.default_rng(0)
    jobs = [rng.integers(0, VOCAB, n).tolist() for n in (3, 0, 1, 2, 3, 2)]
    params = [*OPTIONS.values()]
    params[2] = SamplingParams(temperature=0)
    q = torch.softmax(torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1)), -1)
    probs = {0: q, 3: q[:1], 4: q}

    def logits(d: list[int]) -> torch.Tensor:
        return torch.stack([logits_after(4, *d[:j]) for j in range(len(d) + 1)])

    rows = rows_of(jobs, probs, params, range(6), 1)
    together = RejectionVerifier().verify(torch.cat([logits(d) for d in jobs]), rows)
    for i, d in enumerate(jobs):
        own = {0: probs[i]} if i in probs else {}
        assert RejectionVerifier().verify(logits(d), rows_of([d], own, [params[i]], [i], 1)) == [together[i]]


def test_a_draft_of_probability_zero_is_never_accepted() -> None:
    nowhere = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    sure = torch.full((2, VOCAB), -torch.inf)
    sure[:, 2] = 0.0
    for draft, q in ((2, nowhere), (3, nowhere), (3, None)):  # q is 0; p is 0; p is 0
        rows = rows_of([[draft]] * 200, {} if q is None else dict.fromkeys(range(200), q), [SamplingParams()] * 200,
                       range(200), 1)  # fmt: skip
        assert RejectionVerifier().verify(sure.repeat(200, 1), rows) == [[2]] * 200


def test_coins_are_uniform_and_never_at_the_ends(fits) -> None:
    keys = row_keys(np.arange(50_000, dtype=np.uint64), np.zeros(50_000), np.zeros(50_000), Purpose.ACCEPT)
    found = coins(keys)
    assert fits(np.histogram(found, bins=50, range=(0, 1))[0], np.full(50, 1000.0))
    ends = coins(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0 < ends[0] < ends[1] < 1
