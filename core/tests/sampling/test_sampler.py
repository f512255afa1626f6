"""The sampler against a sampler of loops: what is cut off, and how often each token is drawn."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from octavo import SamplingParams
from octavo.sampling.randomness import row_keys
from octavo.sampling.sampler import draw, sample, truncate


def keys_of(num: int, seed: int = 0) -> np.ndarray:
    return row_keys(np.full(num, seed, dtype=np.uint64), np.zeros(num, dtype=int), np.arange(num))


def naive_probabilities(logits: list[float], params: SamplingParams) -> list[float]:
    """Temperature, min_p, top_k, top_p over one row, in double precision, one token at a time; ties stay together."""
    best = max(logits)
    weights = [math.exp((x - best) / params.temperature) for x in logits]
    weights = [w if w >= params.min_p else 0.0 for w in weights]
    if 0 < params.top_k < len(weights):
        last = sorted(weights, reverse=True)[params.top_k - 1]
        weights = [w if w >= last else 0.0 for w in weights]
    if params.top_p < 1:
        total, reached = sum(weights), 0.0
        for weight in sorted(weights, reverse=True):
            reached += weight / total
            if reached >= params.top_p:
                weights = [w if w >= weight else 0.0 for w in weights]
                break
    return [w / sum(weights) for w in weights]


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.3, 0.7, 1.0, 2.0, 10.0]),
        top_k=rng.choice([-1, 0, 0, 1, 2, 5, 30, 49, 50, 51, 10**6]),
        top_p=rng.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.1, 1e-10]),
        min_p=rng.choice([0.0, 0.0, 0.01, 0.2, 0.9, 1.0]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_truncation_is_that_of_the_loop(seed: int) -> None:
    """All rows in one call, so that no row's options reach another row."""
    rng = random.Random(seed)
    params = [random_params(rng) for _ in range(24)]
    logits = torch.randn(24, 50, generator=torch.Generator().manual_seed(seed)) * rng.choice([0.5, 3, 20])
    if seed % 4 == 0:  # values are far apart or exactly equal
        logits = logits.round()
    given = logits.clone()
    probabilities = truncate(logits, params).softmax(-1)
    assert torch.equal(logits, given)
    for row, p, kept in zip(given.tolist(), params, probabilities.tolist(), strict=True):
        assert kept == pytest.approx(naive_probabilities(row, p), abs=2e-6), p


def test_ties_stay_together_and_nothing_else_stays() -> None:
    logits = torch.tensor([[2.0, 5.0, 5.0, 1.0, 5.0, 2.0]])
    for params in (
        SamplingParams(top_k=1),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.01),
        SamplingParams(min_p=1.0),
    ):
        kept = torch.isfinite(truncate(logits, [params]))[0]
        assert kept.tolist() == [False, True, True, False, True, False]
    assert torch.isfinite(truncate(logits, [SamplingParams(top_k=4)]))[0].tolist() == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]


def test_a_nucleus_wider_than_the_first_look_is_found() -> None:
    size = 5000
    flat = torch.zeros(1, size)
    assert torch.isfinite(truncate(flat, [SamplingParams(top_p=0.5)])).all()  # all tie
    slope = torch.linspace(0, -0.5, size).unsqueeze(0)
    probabilities = slope.double().softmax(-1)[0]
    for top_p in (0.1, 0.5, 0.9, 0.9999):
        kept = int(torch.isfinite(truncate(slope, [SamplingParams(top_p=top_p)])).sum())
        wanted = int((probabilities.cumsum(0) < top_p).sum()) + 1
        assert abs(kept - wanted) <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-4, 1e-5, 1.01e-6, 1e-6, 1e-10, 5e-324, 0])
def test_tiny_temperatures_take_the_best_token_and_leave_others_alone(dtype: torch.dtype, temperature: float) -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(3)).mul(30).to(dtype).float()
    logits[:, :100] = -torch.inf
    best = logits.argmax(-1).tolist()
    tiny = [SamplingParams(temperature=temperature, top_p=p) for p in (1, 1e-4, 1e-10, 0.5)]
    warm = [SamplingParams(temperature=1.0, top_p=p) for p in (1, 0.9, 0.5, 0.99)]
    keys = keys_of(8)
    mixed = sample(logits, [*tiny, *warm], keys).tolist()
    assert mixed[:4] == best[:4]
    assert mixed[4:] == sample(logits[4:], warm, keys[4:]).tolist()
    assert torch.isfinite(truncate(logits, [*tiny, *warm]).amax(-1)).all()


def test_greedy_and_random_rows_do_not_touch_each_other() -> None:
    logits = torch.randn(9, 64, generator=torch.Generator().manual_seed(5))
    params = [SamplingParams(temperature=0 if i % 3 == 0 else 1.5, top_k=i) for i in range(9)]
    keys = keys_of(9)
    together = sample(logits, params, keys).tolist()
    alone = [int(sample(logits[i : i + 1], params[i : i + 1], keys[i : i + 1])[0]) for i in range(9)]
    assert together == alone
    assert together[::3] == logits[::3].argmax(-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=3.0),
        SamplingParams(top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
    ],
    ids=["plain", "cold", "hot", "top_k", "top_p", "min_p", "all"],
)
def test_drawn_tokens_follow_the_distribution(params: SamplingParams, fits) -> None:
    num, size = 8_000, 40
    logits = torch.randn(size, generator=torch.Generator().manual_seed(11)) * 2
    tokens = np.concatenate(
        [draw(logits.repeat(2000, 1), [params] * 2000, keys_of(2000, seed)) for seed in range(num // 2000)]
    )
    expected = np.array(naive_probabilities(logits.tolist(), params)) * num
    assert fits(np.bincount(tokens, minlength=size).astype(float), expected)
    wrong = np.array(naive_probabilities(logits.tolist(), SamplingParams(temperature=params.temperature * 1.2))) * num
    assert not fits(np.bincount(tokens, minlength=size).astype(float), wrong)


def test_successive_positions_of_one_seed_follow_the_distribution_too(fits) -> None:
    """A text draws along positions, a batch along seeds: both are fair."""
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    expected = logits.softmax(-1).numpy() * 8000
    along_seeds = draw(logits.repeat(8000, 1), [SamplingParams()] * 8000,
                       row_keys(np.arange(8000, dtype=np.uint64), np.zeros(8000, int), np.full(8000, 5)))  # fmt: skip
    along_children = draw(logits.repeat(8000, 1), [SamplingParams()] * 8000,
                          row_keys(np.zeros(8000, dtype=np.uint64), np.arange(8000), np.full(8000, 5)))  # fmt: skip
    for tokens in (along_seeds, along_children):
        assert fits(np.bincount(tokens, minlength=4).astype(float), expected)


def test_a_rounding_error_rarely_changes_a_token() -> None:
    logits = torch.randn(2000, 200, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams()] * 2000
    nudged = logits * (1 + 1e-6)
    changed = (draw(logits, params, keys_of(2000)) != draw(nudged, params, keys_of(2000))).sum()
    assert changed <= 2
