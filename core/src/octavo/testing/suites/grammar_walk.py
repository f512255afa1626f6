"""A matcher on its way through a text, with what can be asked of it at every step.

Owns: `Walk`. Must never know: the laws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from octavo.spec import CompiledGrammar, GrammarBackend, GrammarMatcher, MaskRows, Tokenizer
from octavo.testing.suites.grammar_samples import Constraint


class Walk:
    """One matcher, the tokens that it has accepted, and what can be asked of it."""

    def __init__(
        self,
        constraint: Constraint,
        stops: frozenset[int],
        backend: GrammarBackend,
        compiled: CompiledGrammar,
        tokenizer: Tokenizer,
        vocab_size: int,
    ) -> None:
        self.constraint, self.stops, self.backend = constraint, stops, backend
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.special_ids = set(tokenizer.special_token_ids)
        self._compiled = compiled
        self.restart()

    def restart(self) -> None:
        self.matcher: GrammarMatcher = self._compiled.matcher(self.stops)
        self.tokens: list[int] = []

    def accept(self, token_id: int) -> bool:
        accepted = self.matcher.accept(token_id)
        self.tokens += [token_id] * accepted
        return accepted

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)
        del self.tokens[len(self.tokens) - num_tokens :]

    def text(self) -> str:
        return b"".join(map(self.tokenizer.token_bytes, self.tokens)).decode(errors="replace")

    def fill(self, work: Sequence[MaskRows], num_rows: int) -> np.ndarray:  # [num_rows, vocab_size] bool
        bitmask = np.full((num_rows, -(-self.vocab_size // 32)), -1, dtype=np.int32)
        self.backend.fill_bitmask(work, bitmask)
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, count=self.vocab_size, bitorder="little")
        return bits.astype(bool)

    def masks(self, drafts: Sequence[int]) -> np.ndarray:  # [num_drafts + 1, vocab_size] bool
        return self.fill([MaskRows(self.matcher, 0, tuple(drafts))], len(drafts) + 1)

    def mask(self) -> np.ndarray:  # [vocab_size] bool
        return self.masks(())[0]

    def accepted_one_by_one(self) -> list[bool]:
        answers = []
        for token_id in range(self.vocab_size):
            answers.append(self.matcher.accept(token_id))
            if answers[-1]:
                self.matcher.rollback(1)
        return answers

    def state(self) -> tuple[list[bool], bool, str]:
        """All that a matcher shows of where it stands; behind its end no mask is ever asked for."""
        assert self.matcher.failure is None, self.matcher.failure
        if self.tokens and self.tokens[-1] in self.stops:
            return [], self.matcher.is_finished(), ""
        return self.mask().tolist(), self.matcher.is_finished(), self.matcher.forced_text()

    def likely_token(self, rng: random.Random) -> int | None:
        """An allowed token, the end rather than any other; none behind the end."""
        if self.tokens and self.tokens[-1] in self.stops:
            return None
        allowed = np.flatnonzero(self.mask()).tolist()
        ends = [t for t in allowed if t in self.stops]
        return rng.choice(ends if ends and rng.random() < 0.5 else allowed) if allowed else None

    def forbidden_token(self, rng: random.Random) -> int:
        mask = [False] * self.vocab_size if self.tokens and self.tokens[-1] in self.stops else self.mask()
        return rng.choice([t for t, allowed in enumerate(mask) if not allowed])

    def spellings(self, texts: Sequence[str], count: int) -> Iterator[list[int]]:
        """Token ids for each text: as the tokenizer has it, byte by byte, and at random."""
        ordinary = [(t, self.tokenizer.token_bytes(t)) for t in range(self.tokenizer.vocab_size)]
        ordinary = [(t, spelt) for t, spelt in ordinary if spelt]
        rng = random.Random(0)
        for text in texts:
            yield self.tokenizer.encode(text, add_special_tokens=False)
            for i in range(count - 1):
                rest, token_ids = text.encode(), []
                while rest:
                    fitting = [(t, spelt) for t, spelt in ordinary if rest.startswith(spelt)]
                    token_id, spelt = min(fitting, key=lambda f: len(f[1])) if i == 0 else rng.choice(fitting)
                    token_ids.append(token_id)
                    rest = rest[len(spelt) :]
                yield token_ids
