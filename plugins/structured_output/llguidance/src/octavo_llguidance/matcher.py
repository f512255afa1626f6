"""Where one sequence stands in its grammar, on top of an llguidance matcher.

Owns: `Matcher`, `Compiled`. Must never know: schemas, batches, how grammars are compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher

from octavo_llguidance.engine import error_of

_MAX_FORCED_BYTES = 256
"""More than one step can use."""
_MAX_RENEWAL_SECONDS = 0.25


class Compiled:
    """Implements `octavo.spec.CompiledGrammar`.

    Copies of an llguidance matcher share what they learn of the grammar, and with it the limits on that: what one
    sequence uses up, all others lack. So a new start takes the place of one that is used up.
    """

    def __init__(self, compile_again: Callable[[], LLMatcher], is_text: np.ndarray, num_bytes: int) -> None:
        """`is_text` [vocab_size] bool: whether each token id is text."""
        began = time.thread_time()
        self.at_start = compile_again()
        self._may_renew = time.thread_time() - began < _MAX_RENEWAL_SECONDS
        self._compile_again, self.is_text, self.num_bytes = compile_again, is_text, num_bytes

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Matcher(self, stop_token_ids)

    def renewed(self, used_up: LLMatcher) -> LLMatcher:
        """Another matcher at the start than `used_up`; the same if making it takes too long for an engine's step."""
        if used_up is self.at_start and self._may_renew:
            self.at_start = self._compile_again()
        return self.at_start


class Matcher:
    """Implements `octavo.spec.GrammarMatcher`.

    llguidance knows one end token, and a matcher of it that ran into an error stays in it. So stop tokens are kept
    from it altogether, and after an error (a limit was hit) a new one takes its place and follows the same tokens.
    """

    def __init__(self, compiled: Compiled, stop_token_ids: frozenset[int]) -> None:
        self._compiled, self.stop_token_ids = compiled, stop_token_ids
        self._at_start = compiled.at_start
        self._inner = self._at_start.deep_copy()
        self._is_text = compiled.is_text
        self._token_ids: list[int] = []
        self._stopped = False
        self._lost = False
        """Whether the tokens so far cannot be followed again within the limits."""
        self._may_force = True
        self._limit = ""
        """The limit that was hit last, if any."""
        self.failure: str | None = None

    def accept(self, token_id: int) -> bool:
        if self._stopped or self._lost:
            return False
        if token_id in self.stop_token_ids:
            self._stopped = self._inner.is_accepting()
            return self._stopped
        if not 0 <= token_id < len(self._is_text) or not self._is_text[token_id]:
            return False
        for _ in range(2):
            if self._inner.try_consume_tokens([token_id]):
                self._token_ids.append(token_id)
                return True
            if not self._inner.is_error():
                self._inner.compute_bitmask()  # for a limit that is used up goes unnoticed until then
            if not self._recovered() or self._lost:
                break
        return False

    def rollback(self, num_tokens: int) -> None:
        if self._stopped and num_tokens:
            self._stopped = False
            num_tokens -= 1
        if not num_tokens:
            return
        del self._token_ids[len(self._token_ids) - num_tokens :]
        if self._lost:
            self._start_again()
        else:
            self._inner.rollback(num_tokens)
            self._recovered()

    def is_finished(self) -> bool:
        return self._stopped or (self._inner.is_stopped() and not self._lost)

    def forced_text(self) -> str:
        if self._stopped or self._lost or not self._may_force:
            return ""
        forced = self._inner.compute_ff_bytes()[:_MAX_FORCED_BYTES]
        if self._recovered():
            return ""
        try:
            return forced.decode()
        except UnicodeDecodeError as error:  # ends, or stands, within a character
            return forced[: error.start].decode()

    def fill(self, rows: np.ndarray, draft_token_ids: Sequence[int]) -> None:
        """Write masks into `rows` uint32 [1 + num_drafts, num_words]: now, and behind each draft that is allowed.

        The bit behind the vocabulary says whether the output may end there. Rows behind a stop token are left. A row
        whose mask hits a limit allows nothing; llguidance would let the output end there.
        """
        num_accepted = 0
        self.failure = None
        for row, draft in zip(rows, [*draft_token_ids, None], strict=True):
            if not self._fill_row(row) and not num_accepted:
                self.failure = f"llguidance cannot follow this grammar any further: {self._limit}"
            if draft is None or draft in self.stop_token_ids or not self.accept(draft):
                break
            num_accepted += 1
        self.rollback(num_accepted)

    def _fill_row(self, row: np.ndarray) -> bool:
        """Whether that was possible."""
        for _ in range(2):
            if self._stopped or self._lost:
                break
            self._inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if not self._recovered():
                return True
        row[:] = 0
        return self._stopped

    def _recovered(self) -> bool:
        """Whether there was an error; then the matcher is another one now, at the same place.

        That helps against limits of what was ever learned of the grammar. Another one is reached by looking ahead for
        what is forced, where that has no end, so it is not done again.
        """
        if not self._inner.is_error():
            return False
        self._limit = error_of(self._inner)
        self._may_force = False
        self._start_again()
        return True

    def _start_again(self) -> None:
        self._at_start = self._compiled.renewed(self._at_start)
        self._inner = self._at_start.deep_copy()
        self._lost = not all(self._inner.try_consume_tokens([token_id]) for token_id in self._token_ids)
