"""Contract of drafters: who proposes tokens for the target model to verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from octavo.spec.sampling import SequenceView

if TYPE_CHECKING:
    import torch

    from octavo.spec.model import Model
    from octavo.spec.weights import Tokenizer


class DrawDrafts(Protocol):
    """Draws drafts with the randomness of the request, so that the same request gives the same drafts."""

    def __call__(self, rows: Sequence[DraftRow], index: int, probs: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [num_rows]: the draft with `index` drafts before it in its proposal, for each of the rows.

        `probs` [num_rows, vocab_size] float32, each row a distribution.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """What a drafter may see of the target: read-only."""

    model: Model
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None
    vocab_size: int
    max_model_len: int
    num_draft_tokens: int
    """Most drafts for each sequence and step."""
    options: Any
    """The plugin's own options, parsed by its schema."""
    draw: DrawDrafts | None = None
    """How to draw drafts that are offered as `Draft`; None if the verifier takes no probabilities, and then the
    likeliest tokens are the best drafts."""


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A sequence that can take drafts: its prompt is computed and it got tokens in this step."""

    sequence: SequenceView
    num_accepted: int
    """How many drafts of the last proposal were accepted."""
    max_drafts: int
    """Room that is left: drafts beyond it would pass `max_tokens` or the model's length."""
    hidden: torch.Tensor | None  # [num_accepted + 1, hidden_size]
    """Target's hidden states at the accepted drafts' positions and the last one; None unless wanted."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Drafts that were drawn, with what they were drawn from: the p/q rule accepts more of them than it could without.

    Each must be a draw (`TargetView.draw`) from its row of `probs`, and whether it is there must not depend on its
    own value, or else the output's distribution suffers.
    """

    token_ids: Sequence[int]
    probs: torch.Tensor  # [num_drafts, vocab_size] float32


class Drafter(Protocol):
    """Proposes drafts after each step. Built by `factory(target)`.

    Whatever it proposes, the tokens of a request stay the same: a bad drafter only costs time. Under a verifier that
    takes probabilities, it is their distribution that stays the same.
    """

    wants_hidden: bool
    """Whether `DraftRow.hidden` is to be filled."""
    num_lookahead_tokens: int
    """Slots beyond the scheduled tokens that the drafter's own layers write in."""
    model: Model | None
    """The drafter's own layers, whose KV caches are allocated as ordinary groups; None if it has none."""

    def propose(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int] | Draft]:
        """Up to `row.max_drafts` draft token ids for each row, or a `Draft` of them; more are cut off.

        An exception is logged, and the engine goes on without drafts.
        """
        ...

    def release(self, sequence_id: int) -> None:
        """Forget the sequence. A view that `propose` was given may be kept, and read here for the last time."""
        ...
