"""Rejection sampling: the acceptance rule that makes use of what drafts were drawn from.

A draft d that was drawn from q is accepted with probability min(1, p(d) / q(d)), p being the processed and truncated
distribution of its row. If it is not, the token is drawn from max(p - q, 0), normalised (Leviathan et al. 2023, section
2.3 and appendix A.1; Chen et al. 2023, algorithm 2). So the tokens are distributed as without drafts, and as many are
accepted as can be: a part of sum(min(p, q)) of the draws. Which tokens come does depend on the drafts.

Coins and draws are counter-based, and the draw is plain sampling's: without drafts the tokens are those of the exact
rule.

Owns: the rule. Must never know: who drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from octavo.sampling.randomness import Purpose, coins, row_keys
from octavo.sampling.sampler import choose, truncate
from octavo.sampling_params import SamplingParams
from octavo.spec import VerifyRows


class RejectionVerifier:
    """See the module; a `Verifier`."""

    wants_draft_probs = True

    def verify(self, logits: torch.Tensor, rows: VerifyRows) -> Sequence[Sequence[int]]:
        num_rows = np.diff(rows.row_start)
        params = [p for p, n in zip(rows.params, num_rows, strict=True) for _ in range(n)]
        scores = _scores(logits, params)
        accepted = self._accepted(scores, rows)  # [num_rows]
        # Each sequence's token comes from its first row that accepts nothing; a bonus row never does.
        last = [start + int(accepted[start:end].argmin()) for start, end in _spans(rows)]
        drawn = self._draw(scores, rows, last)
        drafts = rows.draft_token_ids
        return [
            [*drafts[start:row].tolist(), token]
            for (start, _), row, token in zip(_spans(rows), last, drawn, strict=True)
        ]

    def _accepted(self, scores: torch.Tensor, rows: VerifyRows) -> np.ndarray:  # [num_rows] bool
        """Whether each row's draft is accepted, if all before it are."""
        drafts = np.flatnonzero(rows.draft_token_ids >= 0)
        accepted = np.zeros(len(scores), dtype=bool)
        if len(drafts):
            part = scores[torch.from_numpy(drafts).to(scores.device)]
            ids = torch.from_numpy(rows.draft_token_ids[drafts]).to(scores.device)
            p = (part.gather(1, ids.unsqueeze(1)).squeeze(1) - part.logsumexp(dim=-1)).double().exp().cpu().numpy()
            q = np.ones(len(scores))
            for n, probs in rows.draft_probs.items():
                start = int(rows.row_start[n])
                own = torch.from_numpy(rows.draft_token_ids[start : start + len(probs)]).to(probs.device)
                q[start : start + len(probs)] = probs.gather(1, own.unsqueeze(1)).squeeze(1).double().cpu().numpy()
            q = q[drafts]
            accepted[drafts] = (q > 0) & (coins(_keys(rows, drafts, Purpose.ACCEPT)) * q < p)
        return accepted

    def _draw(self, scores: torch.Tensor, rows: VerifyRows, last: list[int]) -> list[int]:
        """A token for each sequence from its row `last[n]`: from what the draft there leaves of p, if there is one."""
        chosen = scores[last]  # [num_seqs, vocab_size]
        for n, row in enumerate(last):
            draft, offset = int(rows.draft_token_ids[row]), row - int(rows.row_start[n])
            if draft < 0:
                continue
            probs = rows.draft_probs.get(n)
            if probs is None or offset >= len(probs):
                left = chosen[n].clone()
                left[draft] = -torch.inf
            else:
                left = (chosen[n].softmax(dim=-1) - probs[offset]).log()  # -inf or nan where nothing is left
                left = left.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
            if bool((left > -torch.inf).any()):  # rounding may leave nothing where p and q are the same
                chosen[n] = left
        return choose(chosen, _keys(rows, np.array(last), Purpose.TARGET)).tolist()


def _scores(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Log probabilities up to a constant, [num_rows, vocab_size]; where a row is greedy, all on the likeliest token."""
    scores = truncate(logits, params)
    greedy = [i for i, p in enumerate(params) if p.is_greedy]
    if greedy:
        best = logits[greedy].argmax(dim=-1, keepdim=True)
        scores[greedy] = torch.full_like(scores[greedy], -torch.inf).scatter_(1, best, 0.0)
    return scores


def _spans(rows: VerifyRows) -> list[tuple[int, int]]:
    starts = rows.row_start.tolist()
    return list(pairwise(starts))


def _keys(rows: VerifyRows, indices: np.ndarray, purpose: Purpose) -> np.ndarray:
    """Keys of the rows with these indices."""
    owners = np.searchsorted(rows.row_start, indices, side="right") - 1
    return row_keys(rows.seeds[owners], rows.child_indices[owners], rows.positions[indices], purpose)
