"""The contract between the front end, which knows text, and the engine core, which runs here or elsewhere.

Owns: `EngineClient` and the facts that a core tells once. Must never know: processes, sockets, tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.request import FinishReason, Request
from octavo.snapshot import EngineSnapshot
from octavo.step import StepReport


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine core once it is built."""

    max_model_len: int
    """Tokens of the longest sequence that it serves."""
    model_len_reason: str
    """What that comes from, for the error of a prompt that is too long."""
    description: Mapping[str, str]
    """What was chosen at start and why."""


class EngineClient(Protocol):
    """An engine core, wherever it runs. Calls come from one thread.

    `EngineCore` is the one that its caller steps; `RemoteCore` speaks with one in another process or thread.
    """

    @property
    def facts(self) -> EngineFacts:
        """What is known of the core. Raises what kept it from being built."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether `step` has something to do or to tell, now or later."""
        ...

    def add(self, request: Request, sequence_ids: Sequence[int]) -> None:
        """Queue the completions of a request, each as a sequence under an id that was never used before."""
        ...

    def finish(self, sequence_ids: Sequence[int], reason: FinishReason) -> None:
        """End sequences now; unknown ids are ignored."""
        ...

    def step(self) -> StepReport:
        """What the next step changed. Computes it, or waits for it."""
        ...

    def inspect(self) -> EngineSnapshot:
        """The live sequences, and what every block is used for, between two steps."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running sequences keep what they use."""
        ...

    def check_integrity(self) -> None:
        """Recompute all bookkeeping and compare; for tests. Raises `AssertionError`."""
        ...

    def shutdown(self) -> None:
        """End it; what still runs is dropped."""
        ...
