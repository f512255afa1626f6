"""Contracts between hidden states and tokens: logits processors and verifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from octavo.config import StructuredOutputsConfig
from octavo.request import Request
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import torch

    from octavo.spec.weights import Tokenizer


class SequenceView(Protocol):
    """A read-only look at a sequence as far as it is committed. Drafts are not part of it."""

    sequence_id: int
    request: Request
    child_index: int

    @property
    def num_tokens(self) -> int: ...

    @property
    def token_ids(self) -> np.ndarray:
        """Prompt and output, int32 [num_tokens]; a view that is valid during the call."""
        ...

    @property
    def prompt_token_ids(self) -> np.ndarray: ...

    @property
    def output_token_ids(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class LogitRow:
    """One position whose next token is wanted: the last token of a sequence, or one of its drafts."""

    index: int
    """Row of the logits tensor."""
    sequence: SequenceView
    draft_token_ids: tuple[int, ...]
    """The drafts before this row: history, if they are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorContext:
    """What a logits processor's factory is given."""

    options: Any
    """The plugin's own options, parsed by its schema (None if it declares none)."""
    tokenizer: Tokenizer | None
    vocab_size: int
    """Width of the logits."""
    device: torch.device
    max_num_seqs: int
    max_num_draft_tokens: int
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)


class LogitsProcessor(Protocol):
    """Changes logits before tokens are drawn. Built by `factory(context)`, one for each engine.

    Rows are independent: what happens to one must not depend on which others are in the batch. An exception
    ends the sequences whose rows were passed, with its message, and nothing else.
    """

    def attach(self, sequence: SequenceView) -> bool | Future[Any]:
        """Called once for each sequence that this processor may concern, before it is scheduled.

        False: not interested, never called again for it. True: ready. A Future: the sequence waits, without
        holding others up, until it is done; its exception ends the request. Raise to refuse the request.
        """
        ...

    def prepare(self, rows: Sequence[LogitRow]) -> Mapping[int, str] | None:
        """Do CPU work for these rows (fill bitmasks) while the device runs the forward pass.

        May return why some sequences cannot go on, by sequence id; they, and no others, end with that error.
        """
        ...

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitRow]) -> None:
        """Change `logits` [num_logit_rows, vocab_size] float32 in place, in the rows `row.index` only."""
        ...

    def accept(self, sequence: SequenceView, token_ids: Sequence[int]) -> int | None:
        """`token_ids` were committed to `sequence`, whose view already ends with them.

        A number: the output is complete with so many of them; the sequence ends there with `FinishReason.STOP`.
        """
        ...

    def release(self, sequence_id: int) -> None:
        """Forget the sequence; called exactly once for each attached one."""
        ...

    # A processor with threads, processes or files may have `shutdown()`, which is called once when the engine ends.


class RefinesDrafts(LogitsProcessor, Protocol):
    """A processor that knows something of what comes; its entry says `refines_drafts`."""

    def refine_drafts(self, sequence: SequenceView, draft_token_ids: Sequence[int], max_drafts: int) -> Sequence[int]:
        """Better drafts than the drafter's: cut before one that cannot be accepted, put in what is certain.

        `sequence` is as after `accept`; the drafts, perhaps none, continue it. At most `max_drafts` are of use.
        """
        ...


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """The logit rows of one step, as arrays. Sequence i owns rows `row_start[i]` … `row_start[i + 1] - 1`.

    The first `num_drafts[i]` of them are followed by a draft; the last one gives the bonus token.
    """

    row_start: np.ndarray  # [num_seqs + 1] int64
    draft_token_ids: np.ndarray  # [num_rows] int64: the draft that follows each row, -1 for a bonus row
    draft_probs: Mapping[int, torch.Tensor]
    """What the first drafts of a sequence were drawn from, [<= num_drafts[i], vocab_size], by index i of the sequence.
    Drafts without are certain: all of their distribution is on the draft."""
    params: Sequence[SamplingParams]  # [num_seqs]
    seeds: np.ndarray  # [num_seqs] uint64: seed of the request
    child_indices: np.ndarray  # [num_seqs] int64
    positions: np.ndarray  # [num_rows] int64: position in its sequence of the token to be drawn

    @property
    def num_seqs(self) -> int:
        return len(self.params)


class Verifier(Protocol):
    """Turns logits into tokens, accepting drafts on the way. Zero drafts is plain sampling."""

    wants_draft_probs: bool
    """Whether drafters are to draw their drafts and offer what they drew them from."""

    def verify(self, logits: torch.Tensor, rows: VerifyRows) -> Sequence[Sequence[int]]:
        """For each sequence, the accepted drafts and then one more token.

        `logits` [num_rows, vocab_size] float32, processed; may be overwritten.
        """
        ...
