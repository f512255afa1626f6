"""Calls of llguidance that both this process and its rehearsing children make. Imports neither torch nor numpy.

Owns: the tokenizer that llguidance is given, its limits, what makes a grammar fit for use. Must never know: requests,
schemas, stop tokens, the life of a child.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

_REHEARSED_TOKENS = 8
"""So far into the grammar a compilation looks for limits that only show when masks are computed."""
_MAX_LEXER_STATES = 50_000
"""Of one grammar; a state takes 1 to 2 kB, so that at most 100 MB are reached instead of llguidance's 500 MB."""
_NOTHING_FOLLOWS = "NoExtensionBias"


class GrammarError(Exception):
    """llguidance cannot compile a grammar, or can do nothing with it; the message is for users."""


class Vocabulary:
    """What llguidance asks of a tokenizer: bytes by token id, and one token that ends the output.

    That one is an id of its own behind all others, for a request may have several stop tokens or none. Tokens without
    bytes (special tokens, padding) are never allowed.
    """

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = [*tokens, b"<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [i for i, token in enumerate(tokens) if not token] + [self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        """How a text is tokenised. llguidance asks only to restrict what is forced to one spelling: never wanted."""
        return []


def make_tokenizer(tokens: Sequence[bytes]) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Vocabulary(tokens)))


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start, to be copied. Raises `GrammarError`.

    The first mask is computed, so that copies need not, and some tokens are tried on a copy: some limits of
    llguidance count what happens there.
    """
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        warnings = matcher.get_grammar_warnings()
        if warnings:
            raise GrammarError("; ".join(warnings))
        matcher.compute_bitmask()
        if error_of(matcher) == _NOTHING_FOLLOWS:
            raise GrammarError("nothing satisfies it")
    _check(matcher)
    scout = matcher.deep_copy()
    for _ in range(_REHEARSED_TOKENS):
        mask = int.from_bytes(scout.compute_bitmask(), "little") & ((1 << tokenizer.eos_token) - 1)
        if error_of(scout) == _NOTHING_FOLLOWS or not mask:
            break
        _check(scout)
        scout.try_consume_tokens([(mask & -mask).bit_length() - 1])
        _check(scout)
    return matcher


def error_of(matcher: LLMatcher) -> str:
    """What put the matcher into its error state."""
    return matcher.get_error().replace("<non-verbose/>", "").strip()


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(error_of(matcher))
