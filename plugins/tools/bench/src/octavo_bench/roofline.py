"""The time that a run needs at least on this machine, and how near it came.

Owns: the limit, step by step (the roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009). Must never know:
torch, how a machine is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.step import StepStats
from octavo_bench.work import ModelShape, step_work


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured rates."""

    bytes_per_second: float
    operations_per_second: float
    """A multiplication and an addition are two."""

    def best_with(self, other: Machine) -> Machine:
        """The higher of each: whatever else runs on the machine can only lower a rate."""
        return Machine(
            max(self.bytes_per_second, other.bytes_per_second),
            max(self.operations_per_second, other.operations_per_second),
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """Work of several steps, and the least time for it."""

    num_bytes: int
    num_operations: int
    seconds: float
    """Sum over the steps of what takes longer: moving the bytes, or doing the operations."""


def limit_of(shape: ModelShape, steps: Iterable[StepStats], machine: Machine, shared_prefix_len: int = 0) -> Limit:
    num_bytes = num_operations = 0
    seconds = 0.0
    for stats in steps:
        work = step_work(shape, stats, shared_prefix_len)
        num_bytes += work.num_bytes
        num_operations += work.num_operations
        seconds += max(work.num_bytes / machine.bytes_per_second, work.num_operations / machine.operations_per_second)
    return Limit(num_bytes, num_operations, seconds)
