"""The drafter that never drafts, so that plain decoding is verification of zero drafts.

Owns: `NoDrafter`. Must never know: verification.
"""

from __future__ import annotations

from collections.abc import Sequence

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
