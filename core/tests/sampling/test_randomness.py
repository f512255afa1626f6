"""Counter-based randomness: pure functions of their keys, with the right distribution, independent of each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from octavo.sampling.randomness import Purpose, exponential_noise, row_keys

IDS = torch.arange(200)


def keys_of(seeds, children=0, positions=0, purpose: Purpose = Purpose.TARGET) -> np.ndarray:
    seeds, children, positions = np.broadcast_arrays(np.asarray(seeds, dtype=np.uint64), children, positions)
    return row_keys(seeds, children, positions, purpose)


def uniform(noise: torch.Tensor) -> np.ndarray:
    return np.exp(-noise.double().numpy())


def looks_uniform(values: np.ndarray) -> bool:
    """Kolmogorov and Smirnov: the distance stays below 2.5 / sqrt(n) but for one sample in 100,000."""
    values = np.sort(values.ravel())
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(np.abs(values - steps[:-1]).max(), np.abs(values - steps[1:]).max())
    return distance < 2.5 / np.sqrt(len(values))


def looks_independent(a: np.ndarray, b: np.ndarray) -> bool:
    """Correlations of the values and of their distances from the middle, at five standard deviations."""
    a, b = a.ravel(), b.ravel()
    bound = 5 / np.sqrt(len(a))
    pairs = ((a, b), (np.abs(a - 0.5), np.abs(b - 0.5)), (a, np.abs(b - 0.5)))
    return all(abs(np.corrcoef(x, y)[0, 1]) < bound for x, y in pairs)


def test_a_row_does_not_depend_on_the_rows_beside_it_or_on_the_chunks() -> None:
    keys = keys_of(np.arange(50))
    wide = torch.arange(20_000)  # six rows fill a chunk
    together = exponential_noise(keys, wide)
    for i in (0, 5, 6, 7, 49):
        assert torch.equal(exponential_noise(keys[i : i + 1], wide)[0], together[i])
    shuffled = np.random.default_rng(0).permutation(50)
    assert torch.equal(exponential_noise(keys[shuffled], wide), together[shuffled])


def test_a_token_does_not_depend_on_the_tokens_beside_it() -> None:
    keys = keys_of([3, 4])
    whole = exponential_noise(keys, IDS)
    some = torch.tensor([5, 199, 0, 5])
    assert torch.equal(exponential_noise(keys, some), whole[:, some])
    by_row = torch.tensor([[1, 2], [9, 8]])
    assert torch.equal(exponential_noise(keys, by_row), whole.gather(1, by_row))
    assert exponential_noise(keys[:0], IDS).shape == (0, 200)


def test_keys_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 2**64, 20, dtype=np.uint64)
    children, positions = rng.integers(0, 8, 20), rng.integers(0, 10**6, 20)
    together = row_keys(seeds, children, positions)
    alone = [row_keys(seeds[i : i + 1], children[i : i + 1], positions[i : i + 1])[0] for i in range(20)]
    assert together.tolist() == alone
    assert together.dtype == np.uint64


def test_each_input_and_each_purpose_makes_another_key() -> None:
    seeds, children, positions = zip(*itertools.product([0, 1, 2, 2**63, 2**64 - 1], range(5), range(40)), strict=True)
    keys = [row_keys(np.array(seeds, dtype=np.uint64), np.array(children), np.array(positions), p) for p in Purpose]
    every = np.concatenate(keys)
    assert len(set(every.tolist())) == len(every) == 5 * 5 * 40 * 3


def test_noise_is_never_zero_and_never_infinite() -> None:
    noise = exponential_noise(keys_of(np.arange(40)), torch.arange(200_000))
    assert float(noise.min()) > 0
    assert float(noise.max()) < 17  # -log(2^-24)
    assert torch.isfinite(noise.log()).all()


@pytest.mark.parametrize("vary", ["seed", "child", "position", "token"])
def test_noise_is_exponential_along_every_axis(vary: str) -> None:
    many = np.arange(20_000)
    if vary == "token":
        noise = exponential_noise(keys_of([7]), torch.arange(20_000))
    else:
        keys = {"seed": keys_of(many), "child": keys_of(7, many), "position": keys_of(7, 0, many)}[vary]
        noise = exponential_noise(keys, torch.tensor([11]))
    assert looks_uniform(uniform(noise))
    assert noise.double().mean().item() == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("step", [1, 2, 256, 2**32, 2**40])
def test_neighbouring_seeds_positions_and_children_are_independent(step: int) -> None:
    many = np.arange(100, dtype=np.uint64)
    base = uniform(exponential_noise(keys_of(many * np.uint64(3)), IDS))
    for other in (
        keys_of(many * np.uint64(3) + np.uint64(step)),
        keys_of(many * np.uint64(3), positions=step),
        keys_of(many * np.uint64(3), children=step),
    ):
        assert looks_independent(base, uniform(exponential_noise(other, IDS)))


def test_neighbouring_tokens_and_rows_are_independent() -> None:
    values = uniform(exponential_noise(keys_of(5, 0, np.arange(300)), IDS))
    assert looks_independent(values[:, 1:], values[:, :-1])
    assert looks_independent(values[1:], values[:-1])
    assert looks_independent(values[1:, 1:], values[:-1, :-1])
    # the least of 200 independent uniform numbers, brought back to a uniform one
    assert looks_uniform(1 - (1 - values.min(axis=1)) ** values.shape[1])


def test_purposes_are_independent() -> None:
    many = np.arange(100)
    draws = [uniform(exponential_noise(keys_of(many, purpose=p), IDS)) for p in Purpose]
    for i in range(3):
        assert looks_independent(draws[i], draws[i - 1])


def test_the_judges_can_find_fault() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(20_000)
    assert looks_uniform(values)
    assert not looks_uniform(values**1.1)
    assert looks_independent(values, rng.random(20_000))
    assert not looks_independent(values, np.where(rng.random(20_000) < 0.1, values, rng.random(20_000)))
