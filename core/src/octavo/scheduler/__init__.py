"""Which sequences compute which tokens in a step, and what becomes of the results. Needs no torch."""

from octavo.scheduler.draft_sizing import AdaptiveDrafts, AllDrafts
from octavo.scheduler.queues import FCFSQueue, PriorityQueue
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence, SequenceStatus
from octavo.scheduler.step_costs import StepCosts

__all__ = [
    "AdaptiveDrafts",
    "AllDrafts",
    "FCFSQueue",
    "PriorityQueue",
    "Scheduler",
    "Sequence",
    "SequenceStatus",
    "StepCosts",
]
