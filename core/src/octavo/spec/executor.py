"""Contract of executors: where the model runner runs, and how many of them there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.config import EngineConfig
from octavo.spec.kv import KVCacheSpec
from octavo.step import Attachment, AttachRequest, SchedulerOutput, StepResult

if TYPE_CHECKING:
    from octavo.extensions import Extensions
    from octavo.spec.weights import ModelSource, Tokenizer


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """How the KV cache is cut, decided once by the engine."""

    groups: tuple[tuple[str, ...], ...]
    """Layer names of each KV cache group."""
    num_blocks: tuple[int, ...]
    """Blocks of each group, the null block included."""
    table_widths: tuple[int, ...]
    """Length of the longest block table of each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext:
    """What an executor is built from. Another process can be given `config` and the plugins' names and rebuild it."""

    config: EngineConfig
    extensions: Extensions
    source: ModelSource
    """The opened model; another process opens it again by the configuration."""
    tokenizer: Tokenizer | None
    max_model_len: int


class Executor(Protocol):
    """Carries plans to the runner or runners and brings results back. Built by `factory(context)`.

    Calls come from one thread. `launch` and `collect` alternate; `launch` need not wait for the device.
    """

    num_lookahead_tokens: int
    """Slots beyond the scheduled tokens that the drafter writes in."""

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        """Specs of all attention layers, the drafter's included."""
        ...

    def profile(self) -> int:
        """Run the largest step once; bytes that are then free for the KV cache on the scarcest device."""
        ...

    def initialize_kv_cache(self, layout: KVCacheLayout) -> None: ...

    def measure_step_costs(self, sizes: Sequence[int]) -> Sequence[float]:
        """Seconds that a step of each of these numbers of tokens takes on the slowest device, every token with logits.

        `sizes` rise. It takes a second or two and answers for as many of the first sizes as that allows, at least one.
        Called once after `initialize_kv_cache`, before any sequence is attached, and only if drafts can be rejected.
        """
        ...

    def attach(self, requests: Sequence[AttachRequest]) -> None:
        """Announce sequences, so that processors can prepare. `poll` says when they may be scheduled."""
        ...

    def poll(self, timeout: float = 0.0) -> Sequence[Attachment]:
        """Sequences that became ready or failed; waits up to `timeout` seconds if there is none yet."""
        ...

    def detach(self, sequence_ids: Sequence[int]) -> None:
        """Let go of attached sequences that will never be scheduled (again)."""
        ...

    def launch(self, plan: SchedulerOutput) -> None: ...

    def collect(self) -> StepResult: ...

    def describe(self) -> Mapping[str, str]:
        """What was chosen at start and why (device, dtype, attention backend, memory), for the log."""
        ...

    def shutdown(self) -> None: ...
