"""The grammar backend: constraints in, matchers out, and the bitmask of a step.

Owns: `LLGuidanceBackend`. Must never know: requests, logits, JSON schemas.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import numpy as np

from octavo.errors import InvalidRequestError, one_line
from octavo.grammar import GrammarProcessor, vocabulary_of
from octavo.spec import MaskRows, ProcessorContext
from octavo.structured_outputs import StructuredOutputsParams
from octavo.trial import Limits
from octavo_llguidance.engine import GrammarError, compile_grammar, make_tokenizer
from octavo_llguidance.matcher import Compiled, Matcher
from octavo_llguidance.rehearsal import Rehearsal
from octavo_llguidance.sources import grammar_of

_COMPILED_BYTES = 100_000
_BYTES_PER_SOURCE_BYTE = 150
"""llguidance does not tell its memory; measured on objects with thousands of properties, and large enumerations."""


def make(context: ProcessorContext) -> GrammarProcessor:
    """The factory of the logits processor `llguidance`."""
    return GrammarProcessor(LLGuidanceBackend(context), context)


class _Library:
    """llguidance with this model's vocabulary, and the children that rehearse for it."""

    def __init__(self, context: ProcessorContext) -> None:
        tokens, config = vocabulary_of(context), context.structured_outputs
        self.tokenizer = make_tokenizer(tokens)
        self.is_text = np.array([bool(token) for token in tokens])  # [vocab_size]
        self.text_words = _pack(self.is_text)  # [num_words]
        # half the time: what the child compiles, this process compiles again
        self.rehearsal = Rehearsal(tokens, Limits(config.compile_timeout / 2, config.max_compile_bytes))


class LLGuidanceBackend:
    """Implements `octavo.spec.GrammarBackend`. Reads the vocabulary in the thread that first compiles."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context, self._lock = context, threading.Lock()
        self._made: _Library | None = None

    @property
    def _library(self) -> _Library:
        with self._lock:
            if self._made is None:
                self._made = _Library(self._context)
            return self._made

    def compile(self, params: StructuredOutputsParams) -> Compiled:
        library, grammar = self._library, grammar_of(params)
        try:
            library.rehearsal.check(grammar)
            return Compiled(
                lambda: compile_grammar(library.tokenizer, grammar),
                library.is_text,
                _COMPILED_BYTES + _BYTES_PER_SOURCE_BYTE * len(params.source),
            )
        except GrammarError as error:
            raise InvalidRequestError(
                "structured_outputs", f"llguidance cannot use this {params.kind}: {_wording(error)}"
            ) from None

    def shutdown(self) -> None:
        with self._lock:
            if self._made is not None:
                self._made.rehearsal.close()

    def fill_bitmask(self, work: Sequence[MaskRows], bitmask: np.ndarray) -> None:
        """As the contract says. One matcher after the other: measured, that is faster than llguidance's own threads."""
        library = self._library
        end = library.tokenizer.eos_token
        num_words = bitmask.shape[1]
        for item in work:
            matcher = cast(Matcher, item.matcher)
            # one id more than the vocabulary has, which llguidance takes for the end
            rows = np.full((1 + len(item.draft_token_ids), end // 32 + 1), 0xFFFFFFFF, dtype=np.uint32)
            matcher.fill(rows, item.draft_token_ids)
            may_end = (rows[:, end // 32] >> np.uint32(end % 32)) & np.uint32(1)  # [num_rows]
            masks = rows[:, :num_words] & library.text_words
            for token_id in matcher.stop_token_ids:
                word, bit = token_id // 32, np.uint32(token_id % 32)
                masks[:, word] = masks[:, word] & ~(np.uint32(1) << bit) | may_end << bit
            bitmask[item.first_row : item.first_row + len(masks)] = masks.view(np.int32)


def _pack(bits: np.ndarray) -> np.ndarray:
    """bool [n] as words uint32 [ceil(n / 32)], lowest bit first."""
    padded = np.zeros(-(-len(bits) // 32) * 32, dtype=bool)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def _wording(error: GrammarError) -> str:
    message = one_line(error)
    if message.startswith("oneOf constraints are not supported"):
        return "oneOf is enforced only if no two of its schemas can hold for one value, by type or constants; use anyOf"
    return message
