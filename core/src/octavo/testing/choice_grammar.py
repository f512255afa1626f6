"""The smallest whole grammar backend: `choice` and nothing else, by comparing texts with every token.

It is exact and slow, so it judges the machinery around grammars, and shows how a backend is written.
Owns: `ChoicePlugin` and its backend. Must never know: logits, batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.grammar import GrammarProcessor, vocabulary_of
from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry, MaskRows, ProcessorContext
from octavo.structured_outputs import StructuredOutputsParams


class ChoicePlugin:
    """Offers the grammar backend `choices`."""

    @hookimpl
    def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
        return [
            LogitsProcessorEntry(
                name="choices", factory=make, order=100, refines_drafts=True, grammar_kinds=frozenset({"choice"})
            )
        ]


def make(context: ProcessorContext) -> GrammarProcessor:
    return GrammarProcessor(ChoiceBackend(context), context)


class ChoiceBackend:
    """Implements `GrammarBackend`."""

    def __init__(self, context: ProcessorContext) -> None:
        self._token_bytes = vocabulary_of(context)

    def compile(self, params: StructuredOutputsParams) -> ChoiceGrammar:
        assert params.choice is not None, "other kinds go to other backends"
        return ChoiceGrammar(self._token_bytes, [text.encode() for text in params.choice])

    def fill_bitmask(self, work: Sequence[MaskRows], bitmask: np.ndarray) -> None:
        num_tokens = bitmask.shape[1] * 32
        for item in work:
            num_accepted = 0
            for row, draft in enumerate([*item.draft_token_ids, None], item.first_row):
                allowed = np.zeros(num_tokens, dtype=np.uint8)
                allowed[item.matcher.allowed()] = 1  # type: ignore[attr-defined]
                bitmask[row] = np.packbits(allowed, bitorder="little").view(np.int32)
                if draft is None or not item.matcher.accept(draft):
                    break
                num_accepted += 1
            item.matcher.rollback(num_accepted)

    def shutdown(self) -> None: ...


class ChoiceGrammar:
    """Implements `CompiledGrammar`."""

    def __init__(self, token_bytes: Sequence[bytes], texts: Sequence[bytes]) -> None:
        self._token_bytes, self._texts = token_bytes, texts
        self.num_bytes = sum(map(len, texts))

    def matcher(self, stop_token_ids: frozenset[int]) -> ChoiceMatcher:
        return ChoiceMatcher(self._token_bytes, self._texts, stop_token_ids)


class ChoiceMatcher:
    """Implements `GrammarMatcher`; its state is the text so far, and whether it has ended."""

    failure = None

    def __init__(self, token_bytes: Sequence[bytes], texts: Sequence[bytes], stop_token_ids: frozenset[int]) -> None:
        self._token_bytes, self._texts, self._stops = token_bytes, texts, stop_token_ids
        self._history: list[tuple[bytes, bool]] = [(b"", False)]

    def allowed(self) -> list[int]:
        """Every token that `accept` would take."""
        return [i for i in range(len(self._token_bytes)) if self._after(i) is not None]

    def accept(self, token_id: int) -> bool:
        after = self._after(token_id)
        if after is not None:
            self._history.append(after)
        return after is not None

    def rollback(self, num_tokens: int) -> None:
        del self._history[len(self._history) - num_tokens :]

    def is_finished(self) -> bool:
        text, ended = self._history[-1]
        return ended or not any(len(choice) > len(text) for choice in self._matching(text))

    def forced_text(self) -> str:
        text, ended = self._history[-1]
        choices = self._matching(text)
        shared = next(
            (n for n, bytes_ in enumerate(zip(*choices, strict=False)) if len({*bytes_}) > 1), min(map(len, choices))
        )
        try:
            return "" if ended else choices[0][len(text) : shared].decode()
        except UnicodeDecodeError:  # inside a character
            return ""

    def _after(self, token_id: int) -> tuple[bytes, bool] | None:
        """The state after one more token, or None if it is forbidden."""
        text, ended = self._history[-1]
        if ended:
            return None
        if token_id in self._stops:
            return (text, True) if text in self._texts else None
        added = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
        return (text + added, False) if added and self._matching(text + added) else None

    def _matching(self, text: bytes) -> list[bytes]:
        return [choice for choice in self._texts if choice.startswith(text)]
