"""Contract of waiting queues: in which order sequences are admitted, and who gives way."""

from __future__ import annotations

from typing import Any, Protocol


class QueuedSequence(Protocol):
    """What a queue may look at."""

    sequence_id: int
    priority: int
    arrival_time: float


class WaitingQueue(Protocol):
    """Sequences that wait to run. Built by `octavo_make_queue(policy)`."""

    def add(self, sequence: QueuedSequence) -> None:
        """A new sequence joins."""
        ...

    def put_back(self, sequence: QueuedSequence) -> None:
        """Return a sequence that was preempted, or popped but not started, to its old place in the order.

        Of several that were popped, the last one is put back first.
        """
        ...

    def peek(self) -> Any:
        """The next sequence; only called when not empty."""
        ...

    def pop(self) -> Any: ...

    def remove(self, sequence: QueuedSequence) -> None: ...

    def gives_way_key(self, sequence: QueuedSequence) -> Any:
        """Among running sequences the one with the highest key is preempted first."""
        ...

    def __len__(self) -> int: ...
