"""Plugins that do what a test tells them: a drafter, a logits processor, an observer.

Owns: those. Must never know: anything but the contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from octavo.hookspecs import hookimpl
from octavo.spec import DrafterEntry, DraftRow, LogitRow, LogitsProcessorEntry, SequenceView, TargetView

Propose = Callable[[SequenceView, int], Sequence[int]]
"""(sequence as committed, most drafts) to drafts; more, and nonsense, may be returned."""


class ScriptedDrafter:
    """A plugin and the drafter that it offers, as `scripted`: drafts are whatever `propose` says."""

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self.num_accepted = 0
        self.released: list[int] = []
        """Sequence ids in the order of release."""

    @hookimpl
    def octavo_register_drafters(self) -> list[DrafterEntry]:
        return [DrafterEntry(name="scripted", factory=self._start)]

    def _start(self, target: TargetView) -> ScriptedDrafter:
        return self

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        self.num_accepted += sum(row.num_accepted for row in rows)
        return [self._propose(row.sequence, row.max_drafts) for row in rows]

    def release(self, sequence_id: int) -> None:
        self.released.append(sequence_id)


class ScriptedProcessor:
    """A plugin and the logits processor that it offers, as `scripted`.

    `change(logits row [vocab_size], tokens so far with drafts)` changes a row in place. `on_attach` may raise, or
    return what `LogitsProcessor.attach` may.
    """

    def __init__(
        self,
        change: Callable[[torch.Tensor, list[int]], None] = lambda logits, tokens: None,
        on_attach: Callable[[SequenceView], bool | Future[Any]] = lambda sequence: True,
        always: bool = False,
    ) -> None:
        self._change, self._on_attach, self._always = change, on_attach, always
        self.accepted: dict[int, list[int]] = {}
        """Tokens accepted by each live sequence."""
        self.prepared: set[int] = set()
        """Rows seen by `prepare` and not yet by `apply`."""
        self.released: list[tuple[int, list[int]]] = []
        """Sequence ids in the order of release, each with the tokens it had accepted."""

    @hookimpl
    def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
        return [LogitsProcessorEntry(name="scripted", factory=lambda context: self, always=self._always, order=60)]

    def attach(self, sequence: SequenceView) -> bool | Future[Any]:
        answer = self._on_attach(sequence)
        if answer is not False:
            self.accepted[sequence.sequence_id] = sequence.output_token_ids.tolist()
        return answer

    def prepare(self, rows: Sequence[LogitRow]) -> None:
        self.prepared = {row.index for row in rows}

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitRow]) -> None:
        for row in rows:
            assert row.index in self.prepared, "apply without prepare"
            self._change(logits[row.index], [*row.sequence.token_ids.tolist(), *row.draft_token_ids])

    def accept(self, sequence: SequenceView, token_ids: Sequence[int]) -> None:
        self.accepted[sequence.sequence_id] += token_ids
        assert self.accepted[sequence.sequence_id] == sequence.output_token_ids.tolist(), "tokens were lost or doubled"

    def release(self, sequence_id: int) -> None:
        self.released.append((sequence_id, self.accepted.pop(sequence_id, [])))
