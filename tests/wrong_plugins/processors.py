"""A logits processor as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry
from octavo.testing import LogitsProcessorSuite


class Processor:
    """Lowers each token by how often the output has it."""

    def __init__(self, context):
        self.counts = {}

    def attach(self, sequence):
        self.counts[sequence.sequence_id] = []
        return True

    def prepare(self, rows):
        pass

    def apply(self, logits, rows):
        for row in rows:
            for token in (*self.counts[row.sequence.sequence_id], *row.draft_token_ids):
                logits[row.index, token] -= 0.5

    def accept(self, sequence, token_ids):
        self.counts[sequence.sequence_id] += token_ids

    def release(self, sequence_id):
        del self.counts[sequence_id]


class NeighbourReading(Processor):
    """Compares with the mean of the whole batch."""

    def apply(self, logits, rows):
        super().apply(logits, rows)
        level = logits.mean()
        for row in rows:
            logits[row.index] += (logits[row.index] > level).float()


class NeighbourWriting(Processor):
    """Changes the row behind its own as well."""

    def apply(self, logits, rows):
        super().apply(logits, rows)
        logits[rows[-1].index + 1 :, 7] += 1


class DraftBlind(Processor):
    """Takes drafts for nothing."""

    def apply(self, logits, rows):
        for row in rows:
            for token in self.counts[row.sequence.sequence_id]:
                logits[row.index, token] -= 0.5


class DraftCounting(Processor):
    """Takes drafts for committed tokens, and keeps them."""

    def apply(self, logits, rows):
        super().apply(logits, rows)
        for row in rows:
            self.counts[row.sequence.sequence_id] += row.draft_token_ids[-1:]


class Leaky(Processor):
    """Keeps the state of sequences that are gone."""

    def release(self, sequence_id):
        self.counts[f"gone-{sequence_id}-{len(self.counts)}"] = self.counts.pop(sequence_id)


def plugin_of(processor):
    class Plugin:
        @hookimpl
        def octavo_register_logits_processors(self):
            return [LogitsProcessorEntry(name="fewer", factory=processor)]

    return Plugin()


class TestRight(LogitsProcessorSuite):
    plugin = plugin_of(Processor)


class TestNeighbourReading(LogitsProcessorSuite):
    plugin = plugin_of(NeighbourReading)


class TestNeighbourWriting(LogitsProcessorSuite):
    plugin = plugin_of(NeighbourWriting)


class TestDraftBlind(LogitsProcessorSuite):
    plugin = plugin_of(DraftBlind)


class TestDraftCounting(LogitsProcessorSuite):
    plugin = plugin_of(DraftCounting)


class TestLeaky(LogitsProcessorSuite):
    plugin = plugin_of(Leaky)
