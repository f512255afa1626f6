"""The exact acceptance rule, which is also plain sampling.

Each row draws the target's own token with that position's own randomness; a draft is accepted exactly when it
equals the drawn token, and the first row that differs gives the token instead. For a deterministic drafter a draft
d is so accepted with probability p(d), as much as rejection sampling can (Leviathan et al. 2023, section 2.3, with a
one-hot draft distribution), and the tokens are the same with drafts and without.

Owns: the rule. Must never know: who drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo.sampling.randomness import row_keys
from octavo.sampling.sampler import sample
from octavo.spec import VerifyRows


class ExactVerifier:
    """See the module; a `Verifier`."""

    wants_draft_probs = False

    def verify(self, logits: torch.Tensor, rows: VerifyRows) -> Sequence[Sequence[int]]:
        num_rows = np.diff(rows.row_start)
        keys = row_keys(np.repeat(rows.seeds, num_rows), np.repeat(rows.child_indices, num_rows), rows.positions)
        params = [p for p, n in zip(rows.params, num_rows, strict=True) for _ in range(n)]
        drawn = sample(logits, params, keys)
        differs = drawn != rows.draft_token_ids  # a bonus row's draft is -1, so it always differs
        accepted = []
        for start, end in zip(rows.row_start[:-1], rows.row_start[1:], strict=True):
            num_tokens = int(differs[start:end].argmax()) + 1
            accepted.append(drawn[start : start + num_tokens].tolist())
        return accepted
