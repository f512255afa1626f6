"""The records of a step: one plan down to the executor, one result up, one report to the front end and its observers.

They hold plain numbers only, so they may go to another process as they are.
Owns: `SchedulerOutput`, `StepResult`, `StepReport`, `EngineSnapshot` and their parts. Must never know: torch,
queues, blocks' reference counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.request import FinishReason, Request, TokenLogprobs

BlockIds = tuple[tuple[int, ...], ...]
"""Block ids by KV cache group: `block_ids[group_id]`."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence that the runner does not hold yet: new, or resumed after a preemption."""

    sequence_id: int
    output_token_ids: tuple[int, ...]
    """Tokens generated before a preemption; empty for a new sequence."""


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """What one sequence computes in one step: `num_scheduled_tokens` tokens from `num_computed_tokens` on.

    The scheduled tokens are the committed ones from that position on, then `draft_token_ids`. If they reach the
    last committed token, the step has a logit row for that token and one for each draft, and so yields tokens.
    """

    sequence_id: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    draft_token_ids: tuple[int, ...]
    new_block_ids: BlockIds
    """Blocks to append to the sequence's block tables; for a starting sequence, the whole tables."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step. `released` is applied first, then `started`, then `scheduled`."""

    step_id: int
    released: tuple[int, ...]
    """Sequences that the runner must let go of: finished, aborted, failed."""
    preempted: tuple[int, ...]
    """Sequences that lose their row and blocks but stay attached, to be started again later."""
    started: tuple[SequenceStart, ...]
    scheduled: tuple[ScheduledSequence, ...]

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(s.num_scheduled_tokens for s in self.scheduled)

    @property
    def only_decodes(self) -> bool:
        """Whether there are tokens in it, each the last one of its sequence or a draft."""
        decodes = all(s.num_scheduled_tokens == len(s.draft_token_ids) + 1 for s in self.scheduled)
        return bool(self.scheduled) and decodes


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What one scheduled sequence got out of a step."""

    sequence_id: int
    token_ids: tuple[int, ...] = ()
    """The accepted drafts and one more token; empty while the prompt is not wholly computed."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids`, if the request asked for them."""
    prompt_logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    """(position, log probabilities) of prompt tokens covered by this step."""
    draft_token_ids: tuple[int, ...] = ()
    """Drafts to verify in the next step."""
    error: str | None = None
    """Set if this sequence, and it alone, failed."""
    error_field: str | None = None
    """The request's field at fault, if the request is."""
    complete: bool = False
    """The output is complete with `token_ids`, for a logits processor says so."""


@dataclass(frozen=True, slots=True)
class StepResult:
    step_id: int
    sequences: tuple[SequenceResult, ...]
    """In the order of the plan's `scheduled`."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An executor's word that a sequence may be scheduled, or, with `error`, that it must end."""

    sequence_id: int
    error: str | None = None
    error_field: str | None = None
    """The request's field at fault, if the request is."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """Tells the executor of a sequence before it is scheduled, so that processors can prepare (compile)."""

    sequence_id: int
    request: Request
    child_index: int
    """Which of the request's `n` completions this sequence is."""


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """What one step changed about a sequence, as the front end is told."""

    sequence_id: int
    token_ids: tuple[int, ...] = ()
    """Newly committed tokens; the one that stopped the sequence is the last."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id of the request that ended it; None for EOS and for length."""
    error: str | None = None
    first_scheduled_time: float | None = None
    """When it first ran, in seconds on the clock of `time.monotonic`."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error_field: str | None = None
    """The request's field at fault, if the request is."""


@dataclass(frozen=True, slots=True)
class StepStats:
    """What observers are shown after each step."""

    step_id: int
    duration: float
    """Seconds from scheduling to commit."""
    num_scheduled_tokens: int
    num_generated_tokens: int
    num_running: int
    num_waiting: int
    num_preempted: int
    num_draft_tokens: int
    """Drafts that were verified."""
    num_accepted_tokens: int
    num_used_blocks: int
    num_blocks: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache in this step (first admissions only)."""
    prefix_hits: int
    num_sampled_sequences: int = 0
    """Sequences that got tokens."""
    num_proposed_tokens: int = 0
    """Drafts proposed for the next step; how many of them are verified is decided there."""
    verified_by_position: tuple[int, ...] = ()
    """How many first drafts were verified, how many second ones, and so on."""
    accepted_by_position: tuple[int, ...] = ()
    scheduled: tuple[ScheduledSequence, ...] = ()
    """What each sequence computed in this step, and after how many tokens."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step of the engine core has to tell its client."""

    updates: tuple[SequenceUpdate, ...] = ()
    stats: StepStats | None = None
    """None if nothing was computed and no sequence has gone since the last ones."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When the tokens of one step came, for observers. Seconds."""

    time_to_first_token: tuple[float, ...] = ()
    """From arrival, for each request that got its first one."""
    inter_token_latency: tuple[float, ...] = ()
    """Since the sequence's token before, for each token but a sequence's first. Tokens that come together share
    the time alike."""
