"""The drafter that never drafts, so that plain decoding is verification of zero drafts; and which drafts are of use.

Owns: `NoDrafter`, `usable_drafts`. Must never know: verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from octavo.spec import DraftRow, TargetView


class NoDrafter:
    """A `Drafter` that proposes nothing."""

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, target: TargetView) -> None: ...

    def propose(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        return [()] * len(rows)

    def release(self, sequence_id: int) -> None: ...


def usable_drafts(drafts: Sequence[int], row: DraftRow, vocab_size: int) -> tuple[int, ...]:
    """The drafts for one row, up to its room, a stop token or something that is no token.

    A stop token that the target agrees with comes as the bonus token of the row before it. As a draft it would let
    processors accept tokens behind the end of the sequence.
    """
    stops = row.sequence.request.stop_token_ids

    def usable(token_id: int) -> bool:
        return 0 <= token_id < vocab_size and token_id not in stops

    return tuple(takewhile(usable, map(int, drafts[: row.max_drafts])))
