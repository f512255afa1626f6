"""A grammar backend as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

import itertools

import numpy as np

from octavo.errors import InvalidRequestError
from octavo.grammar import GrammarProcessor
from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry
from octavo.testing import Constraint, GrammarSuite


class Matcher:
    """Which of some texts the output can still become."""

    failure = None

    def __init__(self, choices, tokens, stops):
        self.choices, self.tokens, self.stops = choices, tokens, stops
        self.said = [b""]
        self.ended = False

    def allows(self, token_id):
        said = self.said[-1]
        if self.ended:
            return False
        if token_id in self.stops:
            return said in self.choices
        new = self.tokens[token_id] if token_id < len(self.tokens) else b""
        return bool(new) and any(choice.startswith(said + new) for choice in self.choices)

    def accept(self, token_id):
        if not self.allows(token_id):
            return False
        self.ended = token_id in self.stops
        self.said.append(self.said[-1] + (b"" if self.ended else self.tokens[token_id]))
        return True

    def rollback(self, num_tokens):
        if num_tokens:
            del self.said[-num_tokens:]
            self.ended = False

    def is_finished(self):
        return self.ended or not any(c != self.said[-1] and c.startswith(self.said[-1]) for c in self.choices)

    def forced_text(self):
        said = self.said[-1]
        rest = [c[len(said) :] for c in self.choices if c.startswith(said)]
        columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*rest, strict=False))
        return "" if self.ended else bytes(column[0] for column in columns).decode(errors="ignore")


class Compiled:
    num_bytes = 1000

    def __init__(self, choices, tokens, matcher):
        self.choices, self.tokens, self.make = choices, tokens, matcher

    def matcher(self, stop_token_ids):
        return self.make(self.choices, self.tokens, stop_token_ids)


class Backend:
    """Knows `choice`, and of regular expressions those that are broken."""

    matcher = Matcher

    def __init__(self, context):
        self.tokens = [context.tokenizer.token_bytes(i) for i in range(context.tokenizer.vocab_size)]

    def compile(self, params):
        if params.choice is None:
            raise InvalidRequestError("structured_outputs", f"{params.kind} is beyond this backend")
        return Compiled([text.encode() for text in params.choice], self.tokens, self.matcher)

    def fill_bitmask(self, work, bitmask):
        width = bitmask.shape[1] * 32
        for item in work:
            matcher, num_accepted = item.matcher, 0
            for row in range(item.first_row, item.first_row + len(item.draft_token_ids) + 1):
                bits = np.array([self.allowed(matcher, i) for i in range(width)])
                bitmask[row] = np.packbits(bits, bitorder="little").view(np.int32)
                if num_accepted == len(item.draft_token_ids) or not matcher.accept(item.draft_token_ids[num_accepted]):
                    break
                num_accepted += 1
            matcher.rollback(num_accepted)

    def allowed(self, matcher, token_id):
        return matcher.allows(token_id)


class WrongRollback(Matcher):
    """Forgets that it had come to its end."""

    def rollback(self, num_tokens):
        if num_tokens:
            del self.said[-num_tokens:]


class ShortRollback(Matcher):
    """Goes back one token too few over long ways."""

    def rollback(self, num_tokens):
        super().rollback(min(num_tokens, 2))


class OneTooMany(Backend):
    """Its mask allows a token that the grammar does not."""

    def allowed(self, matcher, token_id):
        return token_id == 40 or super().allowed(matcher, token_id)


class EarlyEnd(Matcher):
    """Takes a text for whole that could go on."""

    def is_finished(self):
        return self.said[-1] in self.choices


class Drifting(Backend):
    """Leaves matchers where the drafts end."""

    def fill_bitmask(self, work, bitmask):
        super().fill_bitmask(work, bitmask)
        for item in work:
            for draft in item.draft_token_ids[:1]:
                item.matcher.accept(draft)


def plugin_of(backend, matcher=Matcher):
    own = type("Own", (backend,), {"matcher": matcher})

    class Plugin:
        @hookimpl
        def octavo_register_logits_processors(self):
            return [
                LogitsProcessorEntry(
                    name="choices",
                    factory=lambda context: GrammarProcessor(own(context), context),
                    always=True,
                    order=100,
                    refines_drafts=True,
                    grammar_kinds=frozenset({"choice"}),
                )
            ]

    return Plugin()


class TestRight(GrammarSuite):
    plugin = plugin_of(Backend)
    constraints = (*GrammarSuite.constraints, Constraint({"choice": ["ab", "a"]}, ("ab", "a"), ("", "b", "abb")))


class TestWrongRollback(GrammarSuite):
    plugin = plugin_of(Backend, WrongRollback)


class TestShortRollback(GrammarSuite):
    plugin = plugin_of(Backend, ShortRollback)


class TestOneTooMany(GrammarSuite):
    plugin = plugin_of(OneTooMany)


class TestEarlyEnd(GrammarSuite):
    plugin = plugin_of(Backend, EarlyEnd)


class TestDrifting(GrammarSuite):
    plugin = plugin_of(Drifting)
