"""Draws one token for each logit row.

Order: temperature, min_p, top_k, top_p; each cuts what the one before has left. Rows never influence each other.
Owns: truncation and drawing. Must never know: sequences, drafts, logits processors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo.sampling.randomness import exponential_noise
from octavo.sampling_params import GREEDY_TEMPERATURE, SamplingParams

_TOP_P_CANDIDATES = 1024
"""A nucleus is looked for among this many most likely tokens before all of them are sorted."""


def sample(
    logits: torch.Tensor,  # [num_rows, vocab_size] float32
    params: Sequence[SamplingParams],  # [num_rows]
    keys: np.ndarray,  # [num_rows] uint64
) -> np.ndarray:  # [num_rows] int64
    """A token for each row: the most likely one where it is greedy, else one drawn with the row's own key."""
    random_rows = [i for i, p in enumerate(params) if not p.is_greedy]
    tokens = best(logits) if len(random_rows) < len(params) else np.empty(len(params), dtype=np.int64)
    if random_rows:
        tokens[random_rows] = draw(
            logits if len(random_rows) == len(params) else logits[random_rows],
            [params[i] for i in random_rows],
            keys[random_rows],
        )
    return tokens


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], keys: np.ndarray) -> np.ndarray:
    """A token of each row's truncated distribution; shapes as in `sample`."""
    return choose(truncate(logits, params), keys)


def choose(scores: torch.Tensor, keys: np.ndarray) -> np.ndarray:
    """Gumbel-max: a token of each row, drawn with the row's key. May overwrite `scores`.

    `scores` [num_rows, vocab_size] are log probabilities up to a constant in each row, -inf where nothing is drawn.
    """
    token_ids = torch.arange(scores.shape[-1], device=scores.device)
    noise = exponential_noise(keys, token_ids)
    return best(scores.sub_(noise.log_()))


def best(scores: torch.Tensor) -> np.ndarray:  # [num_rows, vocab_size] -> [num_rows] int64
    """The token with the highest score (float32) in each row; of several the first."""
    if scores.device.type == "cpu":
        return scores.numpy().argmax(axis=-1)  # vectorised, which torch's is not: 12 times as fast on one core
    return scores.argmax(dim=-1).cpu().numpy()


def truncate(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Scaled logits [num_rows, vocab_size], 0 for the most likely token and -inf for all that is cut off."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    # Subtracting the maximum first keeps tiny temperatures finite: the best token is 0 / T = 0.
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / column(
        [max(p.temperature, GREEDY_TEMPERATURE) for p in params]
    )
    if any(p.min_p > 0 for p in params):
        floor = column([p.min_p for p in params]).log()
        scores.masked_fill_(scores < floor, -torch.inf)
    vocab_size = scores.shape[-1]
    top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    limited = [i for i, k in enumerate(top_k) if k < vocab_size]
    if limited:
        highest = scores[limited].topk(max(top_k[i] for i in limited), dim=-1).values
        index = torch.tensor([[top_k[i] - 1] for i in limited], device=scores.device)
        scores[limited] = scores[limited].masked_fill(scores[limited] < highest.gather(1, index), -torch.inf)
    for i, p in enumerate(params):
        if p.top_p < 1:
            scores[i] = _nucleus(scores[i], p.top_p)
    return scores


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest most likely tokens whose probability reaches `top_p`, and what ties with the last of them.

    `scores` [vocab_size]. Nucleus sampling: Holtzman et al. 2020, section 3.1.
    """
    total = scores.logsumexp(dim=-1)
    for num_candidates in (_TOP_P_CANDIDATES, len(scores)):
        highest = scores.topk(min(num_candidates, len(scores))).values
        before = (highest - total).exp().cumsum(dim=-1)
        reached = int((before < top_p).sum())  # index of the token that reaches top_p
        if reached < len(highest):
            return scores.masked_fill(scores < highest[reached], -torch.inf)
    return scores
