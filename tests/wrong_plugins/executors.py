"""An executor as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

import threading
from dataclasses import replace

from octavo.executor.inproc import InProcessExecutor
from octavo.hookspecs import hookimpl
from octavo.spec import ExecutorEntry
from octavo.testing import ExecutorSuite


class AbortDropping(InProcessExecutor):
    """Forgets to pass on one of several that are to be let go."""

    def detach(self, sequence_ids):
        super().detach(sequence_ids[1:] if len(sequence_ids) > 1 else sequence_ids)


class DraftLosing(InProcessExecutor):
    """Hands on one draft less than the runner has."""

    def collect(self):
        result = super().collect()
        return replace(
            result, sequences=tuple(replace(s, draft_token_ids=s.draft_token_ids[:-1]) for s in result.sequences)
        )


class Mixing(InProcessExecutor):
    """Gives two sequences each other's tokens."""

    def collect(self):
        result = super().collect()
        if len(result.sequences) < 2:
            return result
        one, other, *rest = result.sequences
        swapped = replace(one, token_ids=other.token_ids), replace(other, token_ids=one.token_ids)
        return replace(result, sequences=(*swapped, *rest))


class Lingering(InProcessExecutor):
    """Leaves a thread behind."""

    def __init__(self, context):
        super().__init__(context)
        self.stopped = threading.Event()
        threading.Thread(target=self.stopped.wait, daemon=True).start()


def plugin_of(executor):
    class Plugin:
        @hookimpl
        def octavo_register_executors(self):
            return [ExecutorEntry(name="here", factory=executor)]

    return Plugin()


class TestRight(ExecutorSuite):
    plugin = plugin_of(InProcessExecutor)


class TestAbortDropping(ExecutorSuite):
    plugin = plugin_of(AbortDropping)


class TestDraftLosing(ExecutorSuite):
    plugin = plugin_of(DraftLosing)


class TestMixing(ExecutorSuite):
    plugin = plugin_of(Mixing)


class TestLingering(ExecutorSuite):
    plugin = plugin_of(Lingering)
