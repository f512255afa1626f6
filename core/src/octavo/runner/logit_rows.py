"""Which positions of a step get logits, and what the verifier needs to know of them.

Owns: `LogitRows`, and rows from which no token can be drawn. Must never know: models, processors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from octavo.runner.input_batch import RunnerSequence, StepInputs
from octavo.sampling_params import SamplingParams
from octavo.spec import VerifyRows


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The logit rows of the sequences that get tokens in this step: sequence n owns rows `start[n]` … `start[n+1]`."""

    scheduled: list[int]
    """Index of each of these sequences in the plan's `scheduled`."""
    sequences: list[RunnerSequence]
    drafts: list[tuple[int, ...]]
    start: np.ndarray  # [num_seqs + 1] int64
    flat_indices: np.ndarray  # [num_rows] int64: position of each row in the flat batch

    def span(self, n: int) -> slice:
        return slice(int(self.start[n]), int(self.start[n + 1]))

    def verify_rows(self, draft_probs: Mapping[int, torch.Tensor] | None = None) -> VerifyRows:
        """`draft_probs`: of the newest drafts, by sequence id; the first of them are these rows'."""
        num_rows = np.diff(self.start)
        first = np.repeat([s.num_tokens for s in self.sequences], num_rows)
        return VerifyRows(
            row_start=self.start,
            draft_token_ids=np.array([t for d in self.drafts for t in (*d, -1)], dtype=np.int64),
            draft_probs={
                n: draft_probs[s.sequence_id][: len(d)]
                for n, (s, d) in enumerate(zip(self.sequences, self.drafts, strict=True))
                if draft_probs and d and s.sequence_id in draft_probs
            },
            params=[s.request.sampling_params for s in self.sequences],
            seeds=np.array([s.request.seed & 0xFFFFFFFFFFFFFFFF for s in self.sequences], dtype=np.uint64),
            child_indices=np.array([s.child_index for s in self.sequences], dtype=np.int64),
            positions=first + np.arange(len(first)) - np.repeat(self.start[:-1], num_rows),
        )


def choose_logit_rows(inputs: StepInputs) -> LogitRows:
    """A row for the last committed token of each sequence that reaches it, and one for each of its drafts."""
    scheduled, sequences, drafts, counts, flat = [], [], [], [0], []
    for i, (sequence, plan) in enumerate(zip(inputs.sequences, inputs.scheduled, strict=True)):
        num_drafts = len(plan.draft_token_ids)
        if plan.num_computed_tokens + plan.num_scheduled_tokens - num_drafts == sequence.num_tokens:
            end = int(inputs.query_start[i + 1])
            scheduled.append(i)
            sequences.append(sequence)
            drafts.append(plan.draft_token_ids)
            counts.append(num_drafts + 1)
            flat.extend(range(end - num_drafts - 1, end))
    return LogitRows(scheduled, sequences, drafts, np.cumsum(counts), np.array(flat, dtype=np.int64))


_NOT_FINITE = "the model's logits are not finite numbers"
_NOTHING_LEFT = "no token is allowed: the request's restrictions exclude them all"


_RESTRICTIONS = ("structured_outputs", "allowed_token_ids", "bad_words", "min_tokens", "logit_bias")


def field_at_fault(params: SamplingParams, error: str) -> str | None:
    """The field of a request that made a row fail by leaving it no token, if that is why; of several, the first."""
    return next((f for f in _RESTRICTIONS if getattr(params, f)), None) if error == _NOTHING_LEFT else None


def blank_bad_rows(logits: torch.Tensor) -> dict[int, str]:  # logits [num_rows, vocab_size]
    """Rows from which no token can be drawn, with the reason; they are blanked, so that the verifier stays sound."""
    best = logits.amax(dim=-1).cpu().numpy()  # [num_rows]
    bad = np.flatnonzero(~np.isfinite(best)).tolist()
    if bad:
        logits[bad] = 0.0
    return {row: _NOTHING_LEFT if np.isneginf(best[row]) else _NOT_FINITE for row in bad}


def cut_at_bad_rows(
    rows: LogitRows, tokens: Sequence[Sequence[int]], bad: Mapping[int, str], errors: dict[int, str]
) -> list[Sequence[int]]:
    """Tokens up to the first bad row that they reach. A sequence fails only if that is its first row.

    A bad row behind a rejected draft is not reached. One behind accepted drafts becomes the first row of the next
    step and fails the sequence then, so that drafts change nothing.
    """
    kept = list(tokens)
    for n, (sequence, start) in enumerate(zip(rows.sequences, rows.start.tolist(), strict=False)):
        reached = [row for row in range(start, start + len(tokens[n])) if row in bad]
        if reached:
            kept[n] = tokens[n][: reached[0] - start]
            if not kept[n]:
                errors.setdefault(sequence.sequence_id, bad[start])
    return kept
