"""Asks worker processes whether a constraint can be compiled, and says what it means if they do not answer.

Owns: the wording of limits. Must never know: xgrammar, grammars, processes.
"""

from __future__ import annotations

import os

import msgspec

from octavo.errors import InvalidRequestError
from octavo.trial import Ending, Limits, TrialEnded, Trials
from octavo_xgrammar.worker import Job, Reply, Setup


class Workers:
    """Workers in as many processes as there are CPUs, or as `num_workers` says if it is not 0."""

    def __init__(self, num_workers: int, limits: Limits) -> None:
        self._limits = limits
        self._trials = Trials("octavo_xgrammar.worker", limits, num_workers or os.cpu_count() or 1)

    @property
    def pids(self) -> list[int]:
        return self._trials.pids

    def close(self) -> None:
        """End all workers; what they were at fails."""
        self._trials.close()

    def ask(self, setup: Setup, job: Job) -> Reply:
        """Have a job done. Raises `InvalidRequestError` (field `structured_outputs`) if it exceeds a limit."""
        try:
            reply = self._trials.run(lambda: msgspec.msgpack.encode(setup), msgspec.msgpack.encode(job))
        except TrialEnded as ended:
            raise InvalidRequestError(
                "structured_outputs", f"the grammar {self._reason(ended)}; simplify it, repeat and nest less"
            ) from None
        return msgspec.msgpack.decode(reply, type=Reply)

    def _reason(self, ended: TrialEnded) -> str:
        limits, option = self._limits, "structured_outputs"
        match ended.ending:
            case Ending.CPU_TIME:
                return f"takes more than {limits.cpu_seconds:g} s of CPU to compile, half of {option}.compile_timeout"
            case Ending.WALL_TIME:
                return (
                    f"is not compiled after {limits.wall_seconds:g} s, six times {option}.compile_timeout, "
                    "with what other processes leave of the CPUs"
                )
            case Ending.MEMORY:
                return f"takes more than the {limits.max_bytes} bytes of {option}.max_compile_bytes to compile"
            case Ending.CRASH:
                return f"crashes the compiler (exit code {ended.exit_code})"
