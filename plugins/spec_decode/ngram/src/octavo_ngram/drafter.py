"""Drafts by prompt lookup: what followed the sequence's last tokens when they occurred before.

The longest suffix of min_n to max_n tokens that occurred before wins, and of its occurrences the most recent one: it is
nearest in topic, and one period back in text that repeats itself. A copy that reaches the end of the sequence goes on
with its own beginning, as in LZ77, so that periodic text gives as many drafts as there is room for.

Owns: `NgramDrafter` and its match rule. Must never know: the model, other sequences, verification.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.spec import DraftRow, TargetView
from octavo_ngram.index import NgramIndex


class NgramDrafter:
    """Implements `octavo.spec.Drafter`. Sequences are indexed when they are first seen here, then token by token."""

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, target: TargetView) -> None:
        self._min_n, self._max_n = target.options.min_n, target.options.max_n
        self._indices: dict[int, NgramIndex] = {}
        """By sequence id, from the first proposal until release."""

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> list[int]:
        sequence, room = row.sequence, row.max_drafts
        token_ids = sequence.token_ids
        index = self._indices.get(sequence.sequence_id)
        if index is None or index.num_tokens > len(token_ids):  # the latter if a step was lost on the way
            index = self._indices[sequence.sequence_id] = NgramIndex(self._min_n, self._max_n)
        index.extend(token_ids)
        if index.match_end is None:
            return []
        start = index.match_end + 1
        drafts: list[int] = token_ids[start : start + room].tolist()
        if len(drafts) < room:  # the text repeats itself up to its end: go on copying from the copy
            drafts = (drafts * (room // len(drafts) + 1))[:room]
        return drafts

    def release(self, sequence_id: int) -> None:
        self._indices.pop(sequence_id, None)
