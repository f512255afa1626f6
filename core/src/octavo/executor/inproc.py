"""The executor of one process: the runner is called directly.

Owns: `InProcessExecutor`. Must never know: what a step computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.runner.model_runner import ModelRunner
from octavo.spec import ExecutorContext, KVCacheLayout, KVCacheSpec
from octavo.step import Attachment, AttachRequest, SchedulerOutput, StepResult


class InProcessExecutor:
    """An `Executor` whose one runner lives here; one process is a cluster of one."""

    def __init__(self, context: ExecutorContext) -> None:
        self._runner = ModelRunner(context)

    @property
    def num_lookahead_tokens(self) -> int:
        return self._runner.num_lookahead_tokens

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return self._runner.kv_cache_specs()

    def profile(self) -> int:
        return self._runner.profile()

    def initialize_kv_cache(self, layout: KVCacheLayout) -> None:
        self._runner.initialize_kv_cache(layout)

    def attach(self, requests: Sequence[AttachRequest]) -> None:
        self._runner.attach(requests)

    def poll(self, timeout: float = 0.0) -> Sequence[Attachment]:
        return self._runner.poll(timeout)

    def detach(self, sequence_ids: Sequence[int]) -> None:
        self._runner.detach(sequence_ids)

    def launch(self, plan: SchedulerOutput) -> None:
        self._runner.launch(plan)

    def collect(self) -> StepResult:
        return self._runner.collect()

    def describe(self) -> Mapping[str, str]:
        return self._runner.describe()

    def shutdown(self) -> None: ...
