"""A plan in the making: who computes what in the next step, and how much more fits into it.

Owns: `StepPlan`. Must never know: queues, who has blocks, why a sequence gives way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.scheduler.sequence import Sequence
from octavo.step import BlockIds, ScheduledSequence, SchedulerOutput, SequenceStart


@dataclass(slots=True)
class StepPlan:
    """Sequences take their share of `budget`, a number of tokens; one that gives way hands its share back."""

    budget: int
    scheduled: dict[int, ScheduledSequence] = field(default_factory=dict)
    """By sequence id, in the order in which they came in."""
    preempted: list[int] = field(default_factory=list)
    _started: list[SequenceStart] = field(default_factory=list)

    def schedule(self, sequence: Sequence, num_tokens: int, drafts: tuple[int, ...], new_block_ids: BlockIds) -> None:
        """The sequence computes its next `num_tokens` tokens, the last of which are `drafts`."""
        self.budget -= num_tokens
        self.scheduled[sequence.sequence_id] = ScheduledSequence(
            sequence.sequence_id, sequence.num_computed_tokens, num_tokens, drafts, new_block_ids
        )

    def start(self, sequence: Sequence, num_tokens: int, block_ids: BlockIds) -> None:
        """Schedule a sequence that the runner does not hold: it is new, or was preempted."""
        self._started.append(SequenceStart(sequence.sequence_id, tuple(sequence.output_token_ids)))
        self.schedule(sequence, num_tokens, (), block_ids)

    def preempt(self, sequence_id: int) -> None:
        """Take a sequence out of the plan, if it is in it, and tell the runner to drop it."""
        planned = self.scheduled.pop(sequence_id, None)
        if planned is not None:
            self.budget += planned.num_scheduled_tokens
        self.preempted.append(sequence_id)

    def output(self, step_id: int, released: Iterable[int]) -> SchedulerOutput:
        """The finished plan; `released` are ids of sequences that have ended, which the runner drops."""
        return SchedulerOutput(
            step_id,
            tuple(released),
            tuple(self.preempted),
            tuple(self._started),
            tuple(self.scheduled.values()),
        )
