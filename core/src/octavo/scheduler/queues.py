"""The waiting queues that core brings along.

Owns: `FCFSQueue` and `PriorityQueue`. Must never know: budgets, blocks, why a sequence waits.
"""

from __future__ import annotations

import heapq
from typing import Any

from octavo.spec.schedule import QueuedSequence, WaitingQueue


class OrderedQueue(WaitingQueue):
    """A heap over a total order of sequences; that order also says who gives way.

    A preempted sequence has kept its place in the order, so putting it back is adding it again. Removal leaves a
    hole in the heap that is dropped when it comes to the top or when holes outnumber sequences: O(log n) amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, int]] = []  # (order, sequence id, number of the entry)
        self._entries: dict[int, tuple[int, QueuedSequence]] = {}  # sequence id -> (number of its entry, sequence)
        self._num_added = 0

    def gives_way_key(self, sequence: QueuedSequence) -> Any:
        """The place of a sequence in the order: the lowest runs first, the highest is preempted first."""
        raise NotImplementedError

    def add(self, sequence: QueuedSequence) -> None:
        assert sequence.sequence_id not in self._entries, f"sequence {sequence.sequence_id} waits already"
        self._num_added += 1
        self._entries[sequence.sequence_id] = (self._num_added, sequence)
        heapq.heappush(self._heap, (self.gives_way_key(sequence), sequence.sequence_id, self._num_added))

    def put_back(self, sequence: QueuedSequence) -> None:
        self.add(sequence)

    def peek(self) -> Any:
        while True:
            _, sequence_id, number = self._heap[0]
            entry = self._entries.get(sequence_id)
            if entry is not None and entry[0] == number:
                return entry[1]
            heapq.heappop(self._heap)

    def pop(self) -> Any:
        sequence = self.peek()
        heapq.heappop(self._heap)
        del self._entries[sequence.sequence_id]
        return sequence

    def remove(self, sequence: QueuedSequence) -> None:
        del self._entries[sequence.sequence_id]
        if len(self._heap) > 2 * len(self._entries):
            self._heap = [
                (self.gives_way_key(waiting), sequence_id, number)
                for sequence_id, (number, waiting) in self._entries.items()
            ]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._entries)


class FCFSQueue(OrderedQueue):
    """First come, first served, by arrival of the request."""

    def gives_way_key(self, sequence: QueuedSequence) -> tuple[float, int]:
        return (sequence.arrival_time, sequence.sequence_id)


class PriorityQueue(OrderedQueue):
    """Lower `priority` first; among equals, first come, first served."""

    def gives_way_key(self, sequence: QueuedSequence) -> tuple[int, float, int]:
        return (sequence.priority, sequence.arrival_time, sequence.sequence_id)
