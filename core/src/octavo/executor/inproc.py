"""The executor of one process: the runner itself.

Owns: `InProcessExecutor`. Must never know: what a step computes.
"""

from __future__ import annotations

from octavo.runner.model_runner import ModelRunner


class InProcessExecutor(ModelRunner):
    """An `Executor` that is its own and only runner; one process is a cluster of one."""

    def shutdown(self) -> None:
        self._processors.shutdown()
