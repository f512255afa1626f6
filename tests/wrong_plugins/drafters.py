"""A drafter as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import DrafterEntry
from octavo.testing import DrafterSuite


class Drafter:
    """Drafts what followed the last token when it stood there before."""

    wants_hidden = False
    num_lookahead_tokens = 0
    model = None

    def __init__(self, target):
        self.seen = {}

    def propose(self, rows):
        return [self.draft(row) for row in rows]

    def draft(self, row):
        tokens = self.seen[row.sequence.sequence_id] = row.sequence.token_ids.tolist()
        places = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        return tokens[places[-1] + 1 :][: row.max_drafts] if places else []

    def release(self, sequence_id):
        self.seen.pop(sequence_id, None)


class Leaky(Drafter):
    """Keeps what it knows of sequences that are gone."""

    def release(self, sequence_id):
        pass


class Peeking(Drafter):
    """Drafts what its batch mate says."""

    def propose(self, rows):
        drafts = super().propose(rows)
        return [draft or other for draft, other in zip(drafts, drafts[1:] + drafts[:1], strict=True)]


class Remembering(Drafter):
    """Has one memory for all drafters, and goes by sequence ids that come again."""

    first_tokens: dict[int, int] = {}  # noqa: RUF012

    def draft(self, row):
        first = self.first_tokens.setdefault(row.sequence.sequence_id, int(row.sequence.token_ids[0]))
        return super().draft(row) or [first]


class Overlong(Drafter):
    """Does not look at how much room there is."""

    def draft(self, row):
        return (super().draft(row) * 9)[:9]


class Fragile(Drafter):
    """Fails for a sequence that repeats nothing."""

    def draft(self, row):
        return super().draft(row) or [1 // 0]


def plugin_of(drafter):
    class Plugin:
        @hookimpl
        def octavo_register_drafters(self):
            return [DrafterEntry(name="lookup", factory=drafter)]

    return Plugin()


class TestRight(DrafterSuite):
    plugin = plugin_of(Drafter)


class TestLeaky(DrafterSuite):
    plugin = plugin_of(Leaky)


class TestPeeking(DrafterSuite):
    plugin = plugin_of(Peeking)


class TestRemembering(DrafterSuite):
    plugin = plugin_of(Remembering)


class TestOverlong(DrafterSuite):
    plugin = plugin_of(Overlong)


class TestFragile(DrafterSuite):
    plugin = plugin_of(Fragile)
