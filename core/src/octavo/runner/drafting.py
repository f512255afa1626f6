"""What the drafter says, made fit for use, and kept until it is verified.

Owns: `Drafting`; the drafter that never drafts, so that plain decoding is verification of zero drafts. Must never
know: how many drafts are verified, and by which rule.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch

from octavo.runner.processing import ProcessorChain
from octavo.sampling.randomness import Purpose, exponential_noise, row_keys
from octavo.spec import Draft, Drafter, DraftRow, TargetView

logger = logging.getLogger(__name__)


class NoDrafter:
    """A `Drafter` that proposes nothing."""

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, target: TargetView) -> None: ...

    def propose(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        return [()] * len(rows)

    def release(self, sequence_id: int) -> None: ...


class Drafting:
    """The drafter of one runner, the processors that refine its drafts, and the distributions it drew them from.

    A processor's changes depend on what was drawn, so what it leaves is no draw from the drafter's distribution any
    more. Sequences with such a processor keep none: without one a verifier accepts a draft d with probability p(d),
    which is right whatever d is and wherever it comes from.
    """

    def __init__(self, name: str, drafter: Drafter, processors: ProcessorChain, vocab_size: int) -> None:
        self._name, self._drafter, self._processors, self._vocab_size = name, drafter, processors, vocab_size
        self._works = True
        self.probs: dict[int, torch.Tensor] = {}
        """Of each sequence's newest drafts, by sequence id, [num_drafts, vocab_size]; later drafts are certain."""

    def propose(self, rows: Sequence[DraftRow], errors: dict[int, str]) -> list[tuple[int, ...]]:
        """Drafts for each row, within its room. A processor that fails at it ends its sequence: see `errors`, by id."""
        for row in rows:
            self.drop(row.sequence.sequence_id)
        drafts = self._ask(rows)
        refine = self._processors.refine
        refined = [refine(r.sequence, d, r.max_drafts, errors) for r, d in zip(rows, drafts, strict=True)]
        return [usable_drafts(d, r, self._vocab_size) for r, d in zip(rows, refined, strict=True)]

    def drop(self, sequence_id: int) -> None:
        """The sequence's newest drafts will not be verified (any more)."""
        self.probs.pop(sequence_id, None)

    def release(self, sequence_id: int) -> None:
        self.drop(sequence_id)
        try:
            self._drafter.release(sequence_id)
        except Exception:  # the sequences of the plan behind it have no part in that
            logger.exception("the drafter failed to release a sequence")

    def _ask(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        """What the drafter says; nothing once it has failed."""
        if rows and self._works:
            try:
                return [self._take(p, row) for row, p in zip(rows, self._drafter.propose(rows), strict=True)]
            except Exception:  # drafts only save time, so no request may suffer
                logger.exception("drafter %r failed; this engine goes on without drafts", self._name)
                self._works = False
                self.probs.clear()
        return [()] * len(rows)

    def _take(self, proposal: Sequence[int] | Draft, row: DraftRow) -> Sequence[int]:
        if not isinstance(proposal, Draft):
            return usable_drafts(proposal, row, self._vocab_size)
        drafts = usable_drafts(proposal.token_ids, row, self._vocab_size)
        if self._processors.refines(row.sequence):
            return drafts
        num_given = min(len(proposal.token_ids), row.max_drafts)
        probs = proposal.probs[: len(drafts)].float()
        if probs.shape != (len(drafts), self._vocab_size):
            wanted = (len(proposal.token_ids), self._vocab_size)
            raise ValueError(f"a Draft's probs must be {list(wanted)}, not {list(proposal.probs.shape)}")
        stops = row.sequence.request.stop_token_ids
        if stops:  # these drafts were kept because they are none, so they are draws from what is left without them
            probs = probs.index_fill(1, torch.tensor(sorted(stops), device=probs.device), 0.0)
            probs = probs / probs.sum(dim=-1, keepdim=True)
        if drafts:
            self.probs[row.sequence.sequence_id] = probs
        # How many are verified may depend on their number, but not on their values: that would favour some of them.
        filler = next(i for i in range(self._vocab_size) if i not in stops)
        return (*drafts, *[filler] * (num_given - len(drafts)))


def usable_drafts(drafts: Sequence[int], row: DraftRow, vocab_size: int) -> tuple[int, ...]:
    """The drafts for one row, up to its room, a stop token or something that is no token.

    A stop token that the target agrees with comes as the bonus token of the row before it. As a draft it would let
    processors accept tokens behind the end of the sequence.
    """
    stops = row.sequence.request.stop_token_ids

    def usable(token_id: int) -> bool:
        return 0 <= token_id < vocab_size and token_id not in stops

    return tuple(takewhile(usable, map(int, drafts[: row.max_drafts])))


def draw_drafts(rows: Sequence[DraftRow], index: int, probs: torch.Tensor) -> torch.Tensor:
    """Draw draft number `index` of each row from `probs` [num_rows, vocab_size]; see `octavo.spec.DrawDrafts`."""
    sequences = [row.sequence for row in rows]
    keys = row_keys(
        np.array([s.request.seed & 0xFFFFFFFFFFFFFFFF for s in sequences], dtype=np.uint64),
        np.array([s.child_index for s in sequences]),
        np.array([s.num_tokens + index for s in sequences]),
        Purpose.DRAFT,
    )
    noise = exponential_noise(keys, torch.arange(probs.shape[-1], device=probs.device))
    return (probs / noise).argmax(dim=-1)
