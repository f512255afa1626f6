"""Plans each step and commits its result.

Owns: the sequences, their order, the token budget, preemption, stop conditions on tokens. Must never know: torch,
how tokens are computed, text.
"""

from __future__ import annotations

import time
from dataclasses import replace

from octavo.config import SchedulerConfig
from octavo.kv import KVCacheManager, PrefixHit
from octavo.request import FinishReason, Request, TokenLogprobs
from octavo.scheduler.draft_sizing import AllDrafts
from octavo.scheduler.sequence import Sequence, SequenceStatus
from octavo.scheduler.step_plan import StepPlan
from octavo.snapshot import SequenceSnapshot
from octavo.spec.kv import BlockHash
from octavo.spec.schedule import WaitingQueue
from octavo.step import (
    BlockIds,
    ScheduledSequence,
    SchedulerOutput,
    SequenceResult,
    SequenceUpdate,
    StepResult,
)


class Scheduler:
    """Each sequence's computed tokens chase its committed tokens and drafts; a step is as much of that as fits.

    A sequence that grows to `max_model_len`, or to what the cache can hold if that is less, ends with `LENGTH`.
    So one that is alone always finds room, the first in the queue's order is never preempted for another, and
    every sequence ends. Up to `num_lookahead_tokens` slots behind the scheduled tokens, within that length, are
    allocated as well.

    `schedule` and `commit` (or `fail`) alternate; `add`, `mark_ready` and `finish` may come at any time between.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        queue: WaitingQueue,
        max_model_len: int,
        num_lookahead_tokens: int = 0,
        draft_sizing: AllDrafts | None = None,
    ) -> None:
        """`draft_sizing` decides how many of the proposed drafts a step verifies; None: all."""
        self.max_model_len = min(max_model_len, kv.capacity_tokens)
        self.num_preempted = 0
        """Sequences preempted by the last `schedule`."""
        self.prefix_queries = 0
        """Prompt tokens that the last `schedule` looked up in the prefix cache, first admissions only."""
        self.prefix_hits = 0
        self._config = config
        self._kv = kv
        self._queue = queue
        self._num_lookahead_tokens = num_lookahead_tokens
        self._draft_sizing = AllDrafts() if draft_sizing is None else draft_sizing
        self._sequences: dict[int, Sequence] = {}
        self._running: list[Sequence] = []  # in the order of admission
        self._released: list[int] = []
        self._step_id = 0

    @property
    def has_work(self) -> bool:
        """Whether `schedule` has something to say: a sequence can run, or the runner has to let go of one."""
        return bool(self._running or self._released or len(self._queue))

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run yet, ready or not."""
        return len(self._sequences) - len(self._running)

    def snapshot(self) -> tuple[SequenceSnapshot, ...]:
        """All live sequences, running ones first."""
        others = (s for s in self._sequences.values() if s.status is not SequenceStatus.RUNNING)
        return tuple(sequence.snapshot() for sequence in (*self._running, *others))

    def add(self, sequence_id: int, request: Request, child_index: int = 0) -> None:
        """Take in a sequence whose prompt leaves room for a token; it waits for `mark_ready`."""
        assert sequence_id not in self._sequences, f"sequence {sequence_id} exists already"
        assert 0 < len(request.prompt_token_ids) < self.max_model_len, "the prompt is empty, or would wait for ever"
        blocks = self._kv.new_blocks()
        self._sequences[sequence_id] = Sequence(sequence_id, request, child_index, blocks, self.max_model_len)

    def mark_ready(self, sequence_id: int) -> None:
        """The executor has prepared the sequence. Ignored for one that ended in the meantime."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.status is SequenceStatus.HELD:
            sequence.status = SequenceStatus.WAITING
            self._queue.add(sequence)

    def finish(self, sequence_id: int, reason: FinishReason, error: str | None = None) -> SequenceUpdate | None:
        """End a sequence from outside: abort, stop string, failed preparation.

        Returns its last update, or None if it is not live (any more). A result that is under way is dropped.
        """
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else self._end(sequence, reason, error=error)

    def schedule(self) -> SchedulerOutput:
        """The plan of the next step."""
        step = StepPlan(self._config.max_num_batched_tokens)
        self.prefix_queries = self.prefix_hits = 0
        self._draft_sizing.choose(self._running, step.budget)
        self._schedule_running(step)
        if not step.preempted:  # what was just taken from one must not go to another
            self._admit_waiting(step)
        self.num_preempted = len(step.preempted)
        self._step_id += 1
        plan = step.output(self._step_id, self._released)
        self._released.clear()
        return plan

    def commit(self, plan: SchedulerOutput, result: StepResult, duration: float | None = None) -> list[SequenceUpdate]:
        """Apply what a step computed in `duration` seconds. Results of sequences that ended meanwhile are dropped.

        Returns one update for each sequence that got tokens or prompt log probabilities, or ended.
        """
        assert plan.step_id == result.step_id, f"result of step {result.step_id} for the plan of step {plan.step_id}"
        if duration and plan.only_decodes:
            self._draft_sizing.timed(plan.num_scheduled_tokens, duration)
        updates = []
        for planned, outcome in zip(plan.scheduled, result.sequences, strict=True):
            assert planned.sequence_id == outcome.sequence_id, "results are not in the order of the plan"
            sequence = self._still_running(planned)
            if sequence is not None:
                update = self._commit_sequence(sequence, planned, outcome)
                if update is not None:
                    updates.append(update)
        return updates

    def fail(self, plan: SchedulerOutput, error: str) -> list[SequenceUpdate]:
        """The whole step failed: its sequences end with `error`, all others go on."""
        sequences = map(self._still_running, plan.scheduled)
        return [self._end(s, FinishReason.ERROR, error=error) for s in sequences if s is not None]

    def check_integrity(self) -> None:
        """Recompute all bookkeeping. Raises `AssertionError`. For tests."""
        self._kv.check_integrity(self._sequences.values())
        by_status = dict.fromkeys(SequenceStatus, 0)
        for sequence in self._sequences.values():
            by_status[sequence.status] += 1
            if sequence.status is not SequenceStatus.RUNNING:
                assert not any(sequence.blocks.tables), "a sequence that does not run has blocks"
                assert sequence.num_computed_tokens == 0, "a sequence that does not run has computed tokens"
                assert not sequence.draft_token_ids, "a sequence that does not run has drafts"
            assert sequence.num_computed_tokens < len(sequence.token_ids), "nothing is left to compute"
            if sequence.draft_token_ids:
                assert sequence.num_computed_tokens == len(sequence.token_ids) - 1, "drafts before their time"
        assert by_status[SequenceStatus.FINISHED] == 0, "a finished sequence is still held"
        assert by_status[SequenceStatus.WAITING] == len(self._queue), "queue differs from the waiting sequences"
        assert by_status[SequenceStatus.RUNNING] == len(self._running), "running list differs from the sequences"
        assert all(self._sequences.get(s.sequence_id) is s for s in self._running), "a stranger runs"
        assert len(self._running) <= self._config.max_num_seqs, "more sequences run than may"

    def _schedule_running(self, step: StepPlan) -> None:
        allocate, scheduled, limit = self._kv.allocate, step.scheduled, self.max_model_len
        # The first ones of the running list are those in the plan: a victim leaves both.
        while (index := len(scheduled)) < len(self._running) and step.budget > 0:
            sequence = self._running[index]
            num_computed = sequence.num_computed_tokens
            num_tokens, drafts = self._next_tokens(sequence, num_computed, step.budget)
            total = min(num_computed + num_tokens + self._num_lookahead_tokens, limit)
            blocks = allocate(sequence, total)
            if blocks is None and drafts:  # they are not worth the preemption of anybody
                num_tokens, drafts = num_tokens - len(drafts), ()
                total = min(num_computed + num_tokens + self._num_lookahead_tokens, limit)
                blocks = allocate(sequence, total)
            if blocks is None:
                blocks = self._allocate_by_preempting(step, sequence, total)
                if blocks is None:
                    continue
            sequence.draft_token_ids = ()
            step.schedule(sequence, num_tokens, drafts, blocks)

    def _allocate_by_preempting(self, step: StepPlan, sequence: Sequence, num_tokens: int) -> BlockIds | None:
        """Blocks for a running sequence, at the cost of others; None if it had to give way itself."""
        while True:
            victim = max(self._running, key=self._queue.gives_way_key)
            self._preempt(step, victim)
            if victim is sequence:
                return None
            blocks = self._kv.allocate(sequence, num_tokens)
            if blocks is not None:
                return blocks

    def _preempt(self, step: StepPlan, victim: Sequence) -> None:
        step.preempt(victim.sequence_id)
        self._running.remove(victim)
        self._kv.free(victim)
        victim.num_computed_tokens = 0
        victim.draft_token_ids = ()
        victim.num_preemptions += 1
        victim.status = SequenceStatus.WAITING
        self._queue.put_back(victim)

    def _admit_waiting(self, step: StepPlan) -> None:
        """Start what there is room for.

        A sequence stays in the queue if another one computes its next block in this step: afterwards it shares it.
        """
        postponed: list[Sequence] = []
        in_progress: set[BlockHash] | None = None
        max_num_seqs = self._config.max_num_seqs
        while step.budget > 0 and len(self._running) + len(postponed) < max_num_seqs and len(self._queue):
            sequence: Sequence = self._queue.peek()
            hit = self._kv.find_hit(sequence) if sequence.reads_prefix_cache else None
            if in_progress is None:  # not sooner: in most steps with a queue there is no room
                in_progress = self._hashes_in_progress(step)
            if hit is not None and self._kv.next_hash(sequence, hit) in in_progress:
                postponed.append(self._queue.pop())
                continue
            num_cached = 0 if hit is None else hit.num_tokens
            num_tokens, _ = self._next_tokens(sequence, num_cached, step.budget)
            total = min(num_cached + num_tokens + self._num_lookahead_tokens, self.max_model_len)
            blocks = self._kv.allocate(sequence, total, hit)
            if blocks is None:  # smaller ones behind it must not overtake it for ever
                break
            self._queue.pop()
            sequence.status = SequenceStatus.RUNNING
            sequence.num_computed_tokens = num_cached
            self._running.append(sequence)
            if sequence.first_scheduled_time is None:
                self._first_admission(sequence, hit)
            step.start(sequence, num_tokens, blocks)
            in_progress.update(self._kv.filled_hashes(sequence, num_cached, num_cached + num_tokens))
        for sequence in reversed(postponed):
            self._queue.put_back(sequence)

    def _hashes_in_progress(self, step: StepPlan) -> set[BlockHash]:
        """Hashes of the blocks that this step fills, even if every draft is rejected."""
        found: set[BlockHash] = set()
        for sequence_id, planned in step.scheduled.items():
            start = planned.num_computed_tokens
            stop = start + planned.num_scheduled_tokens - len(planned.draft_token_ids)
            found.update(self._kv.filled_hashes(self._sequences[sequence_id], start, stop))
        return found

    def _first_admission(self, sequence: Sequence, hit: PrefixHit | None) -> None:
        sequence.first_scheduled_time = time.monotonic()
        if hit is not None and self._kv.prefix_caching:
            sequence.num_cached_tokens = hit.num_tokens
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += hit.num_tokens

    def _next_tokens(self, sequence: Sequence, num_computed: int, budget: int) -> tuple[int, tuple[int, ...]]:
        """How many tokens a sequence computes next, drafts included, and these drafts."""
        num_tokens = len(sequence.token_ids) - num_computed
        threshold = self._config.long_prefill_token_threshold
        if 0 < threshold < num_tokens:
            return min(threshold, budget), ()
        drafts = sequence.draft_token_ids
        if num_tokens + len(drafts) <= budget:
            return num_tokens + len(drafts), drafts
        if num_tokens >= budget:
            return budget, ()
        return budget, drafts[: budget - num_tokens]

    def _still_running(self, planned: ScheduledSequence) -> Sequence | None:
        """The sequence that was planned, unless it has ended since (a new one may wait under its id already)."""
        sequence = self._sequences.get(planned.sequence_id)
        return sequence if sequence is not None and sequence.status is SequenceStatus.RUNNING else None

    def _commit_sequence(
        self, sequence: Sequence, planned: ScheduledSequence, outcome: SequenceResult
    ) -> SequenceUpdate | None:
        fault = outcome.error if outcome.error is not None else sequence.fault_in(planned, outcome.token_ids)
        if fault is not None:
            return replace(self._end(sequence, FinishReason.ERROR, error=fault), error_field=outcome.error_field)
        prompt_logprobs = outcome.prompt_logprobs
        if prompt_logprobs:  # a resumed sequence computes its prompt again
            prompt_logprobs = tuple(p for p in prompt_logprobs if p[0] >= sequence.num_prompt_logprobs)
            covered = planned.num_computed_tokens + planned.num_scheduled_tokens + 1
            sequence.num_prompt_logprobs = max(sequence.num_prompt_logprobs, covered)
        if not outcome.token_ids:
            sequence.num_computed_tokens += planned.num_scheduled_tokens
            self._kv.commit(sequence, sequence.num_computed_tokens)
            return sequence.update(prompt_logprobs=prompt_logprobs) if prompt_logprobs else None
        count, reason, stop_reason = sequence.append(outcome.token_ids)
        # Accepted drafts have valid KV, the token after them has none yet; whatever else was drafted is overwritten.
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        self._kv.commit(sequence, sequence.num_computed_tokens)
        token_ids, logprobs = outcome.token_ids[:count], outcome.logprobs[:count]
        if outcome.complete and reason is None:
            reason = FinishReason.STOP
        if reason is not None:
            return self._end(sequence, reason, stop_reason, None, token_ids, logprobs, prompt_logprobs)
        if self._kv.rewindable:  # or else no draft may be rejected
            room = sequence.max_num_tokens - len(sequence.token_ids) - 1  # the last token is never a draft
            sequence.draft_token_ids = outcome.draft_token_ids[:room]
            self._draft_sizing.observe(sequence, token_ids, sequence.draft_token_ids)
        return sequence.update(token_ids, logprobs, prompt_logprobs)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_reason: int | None = None,
        error: str | None = None,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[tuple[int, TokenLogprobs], ...] = (),
    ) -> SequenceUpdate:
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._kv.free(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self._queue.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.sequence_id]
        self._draft_sizing.forget(sequence.sequence_id)
        self._released.append(sequence.sequence_id)
        return sequence.update(token_ids, logprobs, prompt_logprobs, reason, stop_reason, error)
