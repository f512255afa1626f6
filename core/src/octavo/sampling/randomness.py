"""Counter-based randomness: every draw is a pure function of (seed, child index, position, purpose, token id).

There are no generators and no state, so a request draws the same tokens alone or in any batch, chunked or not,
preempted or not, with drafts or without. Tokens are drawn by the Gumbel-max trick with one noise value for each
token id: unlike inverting a cumulative distribution, a rounding error in the logits then changes the drawn token
only where two candidates are tied to within that error.

Owns: keys and noise. Must never know: requests, batches, sampling options.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROW_CHUNK_ELEMENTS = 1 << 17
"""Noise is made for as many rows at a time as stay in the cache."""


class Purpose(IntEnum):
    """What a draw is for; draws for different purposes are independent."""

    TARGET = 0
    """The target model's own token."""
    DRAFT = 1
    """A drafter's token."""
    ACCEPT = 2
    """Whether a draft is accepted, for verifiers that toss a coin."""


def row_keys(
    seeds: np.ndarray,  # [num_rows] uint64
    child_indices: np.ndarray,  # [num_rows]
    positions: np.ndarray,  # [num_rows]
    purpose: Purpose = Purpose.TARGET,
) -> np.ndarray:  # [num_rows] uint64
    """One 64-bit key for each row (the finaliser of SplitMix64, Steele et al. 2014, applied to each input in turn)."""
    key = np.asarray(seeds, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in (child_indices, positions, int(purpose)):
            key = _mix(key + _GOLDEN * (np.asarray(word).astype(np.uint64) + np.uint64(1)))
    return key


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def coins(keys: np.ndarray) -> np.ndarray:  # [num_rows] uint64 -> [num_rows] float64
    """Uniform variates, one for each key; never 0 and never 1."""
    return ((keys >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # a bit more would round to 1


def exponential_noise(
    keys: np.ndarray,  # [num_rows] uint64
    token_ids: torch.Tensor,  # [num_tokens] or [num_rows, num_tokens] int64
) -> torch.Tensor:  # [num_rows, num_tokens] float32
    """Standard exponential variates, one for each (row, token id).

    With e of this noise, argmax over tokens of log p - log e is distributed as p (Gumbel-max).
    """
    device = token_ids.device
    halves = torch.from_numpy(np.ascontiguousarray(keys).view(np.int32).reshape(-1, 2)).to(device)
    ids = token_ids.to(torch.int32)
    num_rows, num_tokens = len(keys), ids.shape[-1]
    noise = torch.empty(num_rows, num_tokens, dtype=torch.float32, device=device)
    step = max(1, _ROW_CHUNK_ELEMENTS // max(num_tokens, 1))
    for start in range(0, num_rows, step):
        rows = slice(start, start + step)
        low, high = halves[rows, 0:1], halves[rows, 1:2]
        chunk_ids = ids if ids.dim() == 1 else ids[rows]
        bits = _mix32_(_mix32_(chunk_ids * -1640531527 + low) ^ high)  # 32-bit golden ratio
        # 23 bits and a half: exact in float32, never 0 and never 1
        uniform = ((bits >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)
        torch.neg(uniform.log_(), out=noise[rows])
    return noise


def _mix32_(h: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser (MurmurHash3's, Appleby); int32 multiplication wraps, shifts are masked to be logical."""
    h = h ^ ((h >> 16) & 0xFFFF)
    h.mul_(-2048144789)  # 0x85EBCA6B
    h ^= (h >> 13) & 0x7FFFF
    h.mul_(-1028477387)  # 0xC2B2AE35
    h ^= (h >> 16) & 0xFFFF
    return h
