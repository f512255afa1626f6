"""The decoding state of one completion of a request.

Owns: `Sequence`. Must never know: other sequences, pools, queues. Only the scheduler changes it, and only in
`schedule`, `commit` and when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from enum import Enum, auto
from typing import Literal

from octavo.kv import NULL_BLOCK, SequenceBlocks
from octavo.request import FinishReason, Request, TokenLogprobs
from octavo.snapshot import SequenceSnapshot
from octavo.step import ScheduledSequence, SequenceUpdate


class SequenceStatus(Enum):
    HELD = auto()
    """Announced to the executor, not ready yet."""
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """Committed tokens, how many of them are computed, and the drafts to verify next."""

    __slots__ = (
        "arrival_time",
        "blocks",
        "child_index",
        "draft_token_ids",
        "first_scheduled_time",
        "max_num_tokens",
        "min_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "priority",
        "reads_prefix_cache",
        "request",
        "sequence_id",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self, sequence_id: int, request: Request, child_index: int, blocks: SequenceBlocks, max_model_len: int
    ) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.child_index = child_index
        self.priority = request.sampling_params.priority
        self.arrival_time = request.arrival_time
        self.status = SequenceStatus.HELD
        self.token_ids = list(request.prompt_token_ids)
        """Prompt and output, as far as committed."""
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        """Leading tokens whose KV is valid."""
        self.draft_token_ids: tuple[int, ...] = ()
        self.blocks = blocks
        self.stop_token_ids = request.stop_token_ids
        self.min_num_tokens = self.num_prompt_tokens + request.sampling_params.min_tokens
        """A stop token ends the sequence only when it comes after this many tokens."""
        self.max_num_tokens = min(self.num_prompt_tokens + request.max_tokens, max_model_len)
        """The token that brings the sequence to this length is its last."""
        self.reads_prefix_cache = request.sampling_params.prompt_logprobs is None
        """Log probabilities of prompt tokens come only from computing them."""
        self.num_prompt_logprobs = 0
        """Positions below this one have had their prompt log probabilities delivered."""
        self.first_scheduled_time: float | None = None
        self.num_cached_tokens = 0
        self.num_preemptions = 0

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token_ids: SequenceOf[int]) -> tuple[int, FinishReason | None, int | None]:
        """Commit tokens up to and including the one that ends the sequence.

        Returns how many were taken, why the sequence ends (None: it goes on), and the request's stop id that did it.
        """
        tokens, stop_ids = self.token_ids, self.stop_token_ids
        for count, token_id in enumerate(token_ids, 1):
            tokens.append(token_id)
            if token_id in stop_ids and len(tokens) > self.min_num_tokens:
                own = token_id not in self.request.eos_token_ids
                return count, FinishReason.STOP, token_id if own else None
            if len(tokens) >= self.max_num_tokens:
                return count, FinishReason.LENGTH, None
        return len(token_ids), None, None

    def update(
        self,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[tuple[int, TokenLogprobs], ...] = (),
        finish_reason: FinishReason | None = None,
        stop_reason: int | None = None,
        error: str | None = None,
    ) -> SequenceUpdate:
        """What the front end is told of a change to this sequence."""
        return SequenceUpdate(
            self.sequence_id,
            token_ids,
            logprobs,
            prompt_logprobs,
            finish_reason,
            stop_reason,
            error,
            self.first_scheduled_time,
            self.num_cached_tokens,
            self.num_preemptions,
        )

    def fault_in(self, planned: ScheduledSequence, token_ids: tuple[int, ...]) -> str | None:
        """Why a result cannot belong to the plan: an executor's or verifier's fault that must not spread."""
        drafts = planned.draft_token_ids
        reach = planned.num_computed_tokens + planned.num_scheduled_tokens - len(drafts)
        if reach < len(self.token_ids):
            return f"the executor returned {len(token_ids)} tokens for an incomplete prompt" if token_ids else None
        if not 1 <= len(token_ids) <= len(drafts) + 1 or token_ids[:-1] != drafts[: len(token_ids) - 1]:
            return f"the executor returned tokens {token_ids} for drafts {drafts}; report it to the verifier's plugin"
        return None

    def snapshot(self) -> SequenceSnapshot:
        """What people who look on are shown of it."""
        return SequenceSnapshot(
            sequence_id=self.sequence_id,
            request_id=self.request.request_id,
            state=_STATES[self.status],
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=len(self.token_ids),
            num_computed_tokens=self.num_computed_tokens,
            num_blocks=sum(len(table) - table.count(NULL_BLOCK) for table in self.blocks.tables),
            num_preemptions=self.num_preemptions,
        )


_STATES: Mapping[SequenceStatus, Literal["preparing", "waiting", "running"]] = {
    SequenceStatus.HELD: "preparing",
    SequenceStatus.WAITING: "waiting",
    SequenceStatus.RUNNING: "running",
}
