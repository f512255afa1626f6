"""The step loop without text: scheduler on one side, executor on the other.

Owns: admission, the order of a step, what happens when a step fails. Must never know: text, HTTP, where it runs.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence

from octavo.engine.client import EngineFacts
from octavo.kv import KVCacheManager
from octavo.request import FinishReason, Request
from octavo.scheduler import Scheduler
from octavo.snapshot import EngineSnapshot
from octavo.spec import Executor
from octavo.step import AttachRequest, SchedulerOutput, SequenceUpdate, StepReport, StepResult, StepStats

logger = logging.getLogger(__name__)

IDLE_WAIT = 0.05
"""Seconds to wait for background work (grammars that compile) when nothing else can run."""


class EngineCore:
    """Steps sequences. Speaks records only, so it may run in another process than its client.

    It is itself an `EngineClient`, the one for an engine that its caller steps.
    """

    def __init__(self, scheduler: Scheduler, kv: KVCacheManager, executor: Executor, facts: EngineFacts) -> None:
        self.facts = facts
        self._scheduler = scheduler
        self._kv = kv
        self._executor = executor
        self._undelivered: list[SequenceUpdate] = []
        """Of a step that was interrupted: the next one returns them."""
        self._has_lost_some = False
        """Whether sequences have ended from outside since the last statistics."""
        self.last_stats: StepStats | None = None
        """Of the last step that computed something, or after which fewer sequences were left."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive, those that wait for background work included, or has ended untold."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting or self._undelivered)

    @property
    def has_news(self) -> bool:
        """Whether a step has something to do or to tell."""
        return self.has_work or self._has_lost_some

    def add(self, request: Request, sequence_ids: Sequence[int]) -> None:
        """Queue a request's completions as sequences; they run once their processors are ready."""
        attached = [AttachRequest(sequence_id, request, index) for index, sequence_id in enumerate(sequence_ids)]
        for r in attached:
            self._scheduler.add(r.sequence_id, r.request, r.child_index)
        self._executor.attach(attached)

    def finish(self, sequence_ids: Sequence[int], reason: FinishReason) -> None:
        """End sequences now (abort, stop string); unknown ids are ignored, no update follows."""
        for sequence_id in sequence_ids:
            if self._scheduler.finish(sequence_id, reason) is not None:
                self._has_lost_some = True
        self._undelivered = [u for u in self._undelivered if u.sequence_id not in sequence_ids]
        self._let_go()

    def step(self, idle_wait: float = IDLE_WAIT) -> StepReport:
        """Schedule, launch, collect, commit. A step that fails ends the sequences in it and no others.

        So does one that Ctrl-C interrupts; the exception goes on to the caller. Where sequences only wait for
        background work, it waits for that up to `idle_wait` seconds.
        """
        started = time.monotonic()
        updates, self._undelivered = [*self._undelivered, *self._admit(0.0)], []
        plan = self._scheduler.schedule()
        result = StepResult(plan.step_id, ())
        try:
            self._executor.launch(plan)
            result = self._executor.collect()
        except BaseException as error:
            self._executor.detach(plan.released)  # the plan may not have reached the runner; twice does no harm
            updates += self._scheduler.fail(plan, f"the step failed: {error!r}")
            if not isinstance(error, Exception):
                self._undelivered = updates
                raise
            logger.exception("step %d failed", plan.step_id)
        else:
            updates += self._scheduler.commit(plan, result, time.monotonic() - started)
        stats = None
        if plan.scheduled or self._has_lost_some:
            stats = self.last_stats = self._stats(plan, result, time.monotonic() - started)
            self._has_lost_some = False
        elif not updates:
            updates += self._admit(idle_wait)
        self._let_go()
        return StepReport(tuple(updates), stats)

    def inspect(self) -> EngineSnapshot:
        """The live sequences, and what every block is used for."""
        return EngineSnapshot(self._scheduler.snapshot(), self._kv.snapshot())

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running sequences keep what they use."""
        self._kv.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Recompute all bookkeeping and compare; for tests. Raises `AssertionError`."""
        self._scheduler.check_integrity()
        if not self.has_work:
            assert self._kv.num_used_blocks == 0, "blocks are left over"

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _admit(self, timeout: float) -> list[SequenceUpdate]:
        """Move sequences whose processors are ready to the queue; those that failed end."""
        failed = []
        for attachment in self._executor.poll(timeout):
            if attachment.error is None:
                self._scheduler.mark_ready(attachment.sequence_id)
            elif update := self._scheduler.finish(attachment.sequence_id, FinishReason.ERROR, attachment.error):
                failed.append(dataclasses.replace(update, error_field=attachment.error_field))
        return failed

    def _let_go(self) -> None:
        """When nothing is left to run, tell the executor at once what has ended instead of with the next plan."""
        if not self.has_work and self._scheduler.has_work:
            self._executor.detach(self._scheduler.schedule().released)

    def _stats(self, plan: SchedulerOutput, result: StepResult, duration: float) -> StepStats:
        scheduler = self._scheduler
        sampled = [r for r in result.sequences if r.token_ids]
        verified = [len(s.draft_token_ids) for s in plan.scheduled]
        accepted = [len(r.token_ids) - 1 for r in sampled]
        return StepStats(
            step_id=plan.step_id,
            duration=duration,
            num_scheduled_tokens=plan.num_scheduled_tokens,
            num_generated_tokens=sum(len(r.token_ids) for r in sampled),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_preempted=scheduler.num_preempted,
            num_draft_tokens=sum(verified),
            num_accepted_tokens=sum(accepted),
            num_used_blocks=self._kv.num_used_blocks,
            num_blocks=self._kv.num_blocks,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            num_sampled_sequences=len(sampled),
            num_proposed_tokens=sum(len(r.draft_token_ids) for r in sampled),
            verified_by_position=_by_position(verified),
            accepted_by_position=_by_position(accepted),
            scheduled=plan.scheduled,
        )


def _by_position(lengths: Sequence[int]) -> tuple[int, ...]:
    """How many of the runs of these lengths reach each position."""
    return tuple(sum(length > position for length in lengths) for position in range(max(lengths, default=0)))
