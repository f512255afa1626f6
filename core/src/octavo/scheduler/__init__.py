"""Which sequences compute which tokens in a step, and what becomes of the results. Needs no torch."""

from octavo.scheduler.queues import FCFSQueue, PriorityQueue
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence, SequenceStatus

__all__ = ["FCFSQueue", "PriorityQueue", "Scheduler", "Sequence", "SequenceStatus"]
