"""Grammars are compiled in a child process first, which may be killed: llguidance has limits, but not for everything.

Some schemas make it compile for minutes (multiples of a large number), and deep references overflow the stack, which
ends the process. What a child has compiled in time, this process can compile as well.

Owns: what a child is told, the wording of limits. Must never know: requests, schemas, processes.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

from octavo.trial import Ending, Limits, TrialEnded, Trials
from octavo_llguidance.engine import GrammarError

_MAX_CHILDREN = 4
"""Grammars that are rehearsed at the same time, so that one that takes all its time does not hold up the others."""


class Rehearsal:
    """Has grammars compiled in children."""

    def __init__(self, tokens: Sequence[bytes], limits: Limits) -> None:
        self._setup = json.dumps([token.decode("latin-1") for token in tokens]).encode()
        self._limits = limits
        self._trials = Trials("octavo_llguidance.rehearsal_child", limits, _MAX_CHILDREN)

    @property
    def pids(self) -> list[int]:
        return self._trials.pids

    def check(self, grammar: str) -> None:
        """Return if the grammar compiles within the limits. Raises `GrammarError`."""
        try:
            reply = self._trials.run(lambda: self._setup, json.dumps(grammar).encode())
        except TrialEnded as ended:
            raise GrammarError(self._reason(ended)) from None
        error = json.loads(reply)
        if error is not None:
            raise GrammarError(error)

    def close(self) -> None:
        """End all children; what they were at fails."""
        self._trials.close()

    def _reason(self, ended: TrialEnded) -> str:
        limits, code = self._limits, ended.exit_code
        if ended.ending is Ending.CPU_TIME:
            return f"compiling it takes longer than {limits.cpu_seconds:g} s of structured_outputs.compile_timeout"
        if ended.ending is Ending.WALL_TIME:
            return (
                f"it is not compiled after {limits.wall_seconds:g} s, six times structured_outputs.compile_timeout, "
                "with what other processes leave of the CPUs"
            )
        if ended.ending is Ending.MEMORY or code == -signal.SIGABRT:  # which Rust ends with
            return f"compiling it takes more than {limits.max_bytes} bytes of structured_outputs.max_compile_bytes"
        if code == -signal.SIGSEGV:
            return "it is nested too deeply, or has too many parts"
        return f"compiling it ended its process with {code}"
