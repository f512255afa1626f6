from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from octavo.scheduler import FCFSQueue, PriorityQueue


def waiting(sequence_id: int, arrival: float, priority: int = 0) -> SimpleNamespace:
    return SimpleNamespace(sequence_id=sequence_id, arrival_time=arrival, priority=priority)


@pytest.mark.parametrize("queue_type", [FCFSQueue, PriorityQueue])
@pytest.mark.parametrize("seed", range(30))
def test_queue_does_what_sorting_does(queue_type: type, seed: int) -> None:
    rng = random.Random(seed)
    queue = queue_type()
    naive: list[SimpleNamespace] = []
    popped: list[SimpleNamespace] = []

    def order(s: SimpleNamespace) -> tuple:
        return (s.priority if queue_type is PriorityQueue else 0, s.arrival_time, s.sequence_id)

    for sequence_id in range(300):
        action = rng.choice(["add", "add", "pop", "put_back", "remove", "remove_and_add"])
        if action == "add":
            s = waiting(sequence_id, rng.randint(0, 20), rng.randint(-2, 2))
            queue.add(s)
            naive.append(s)
        elif action == "put_back" and popped:
            s = popped.pop(rng.randrange(len(popped)))
            queue.put_back(s)
            naive.append(s)
        elif naive and action == "pop":
            expected = min(naive, key=order)
            assert queue.peek() is expected
            assert queue.pop() is expected
            naive.remove(expected)
            popped.append(expected)
        elif naive and action.startswith("remove"):
            s = rng.choice(naive)
            queue.remove(s)
            if action == "remove":
                naive.remove(s)
            else:
                queue.add(s)
        assert len(queue) == len(naive)
        if naive:
            assert queue.peek() is min(naive, key=order)
    drained = [queue.pop() for _ in range(len(queue))]
    assert drained == sorted(naive, key=order)
    assert sorted(drained, key=queue.gives_way_key) == drained


def test_priority_beats_arrival_and_equals_keep_their_order() -> None:
    queue = PriorityQueue()
    for s in (waiting(1, 0.0, 5), waiting(2, 1.0, -1), waiting(3, 1.0, -1), waiting(4, 0.5, 5)):
        queue.add(s)
    assert [queue.pop().sequence_id for _ in range(4)] == [2, 3, 1, 4]


def test_fcfs_ignores_priority() -> None:
    queue = FCFSQueue()
    for s in (waiting(1, 2.0, -9), waiting(2, 1.0, 9)):
        queue.add(s)
    assert [queue.pop().sequence_id for _ in range(2)] == [2, 1]


def test_removed_sequences_are_not_kept() -> None:
    queue = FCFSQueue()
    queue.add(waiting(0, 0.0))
    for sequence_id in range(1, 10_000):
        s = waiting(sequence_id, float(sequence_id))
        queue.add(s)
        queue.remove(s)
    assert len(queue) == 1
    assert len(queue._heap) <= 4


def test_a_sequence_cannot_wait_twice() -> None:
    queue = FCFSQueue()
    s = waiting(1, 0.0)
    queue.add(s)
    with pytest.raises(AssertionError, match="waits already"):
        queue.put_back(s)
