"""Log probabilities of chosen tokens and of the most likely ones, from the raw distribution.

Owns: their computation. Must never know: which request asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.request import TokenLogprobs


def gather_logprobs(
    logits: torch.Tensor,  # [num_rows, vocab_size]
    token_ids: Sequence[int],  # [num_rows]
    num_top: Sequence[int],  # [num_rows]: how many of the most likely tokens to list
) -> list[TokenLogprobs]:
    """For each row the log probability and rank of its token, and its `num_top` most likely tokens."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1))  # [num_rows, 1]
    ranks = (logprobs > chosen).sum(dim=-1).add_(1).tolist()
    widest = min(max(num_top), logits.shape[-1])
    top = logprobs.topk(widest, dim=-1) if widest else None
    values = top.values.tolist() if top is not None else [[]] * len(token_ids)
    indices = top.indices.tolist() if top is not None else [[]] * len(token_ids)
    return [
        TokenLogprobs(token_id, logprob, rank, tuple(zip(ids[:n], best[:n], strict=True)))
        for token_id, logprob, rank, ids, best, n in zip(
            token_ids, chosen.squeeze(1).tolist(), ranks, indices, values, num_top, strict=True
        )
    ]
