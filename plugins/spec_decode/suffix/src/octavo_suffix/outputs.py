"""Outputs of requests that are over, for later ones to draft from: apart by salt, within one bound for all.

Owns: `OutputStore`. Must never know: live sequences, probabilities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from octavo_suffix.index import END, ContextIndex, to_words


class OutputStore:
    """First in, first out, in whole outputs.

    At most `max_tokens` tokens are kept, with a separator for each output. What was dropped last may still take memory,
    but never more than a quarter of `max_tokens`.
    """

    def __init__(self, match_lens: Sequence[int], max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._index = ContextIndex(match_lens, 1 << min(20, max_tokens.bit_length()))
        self._outputs: deque[tuple[str | None, int]] = deque()  # salt, number of words
        self._oldest = 1
        self._num_tokens = 0
        self._owners: dict[str | None, int] = {}
        self._num_outputs: dict[str | None, int] = {}
        self._free_owners: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that can be found, and separators."""
        return self._num_tokens

    @property
    def num_bytes(self) -> int:
        return self._index.num_bytes

    def context(self, salt: str | None, token_ids: np.ndarray) -> bytes | None:
        """`token_ids` in the words of that salt; None if nothing of it is kept."""
        owner = self._owners.get(salt)
        return None if owner is None else to_words(token_ids, owner)

    def continuations(self, context: bytes, match_len: int, max_occurrences: int, max_len: int) -> dict[bytes, int]:
        """As `ContextIndex.continuations`, over the outputs that are kept."""
        return self._index.continuations(context, match_len, max_occurrences, max_len, self._oldest)

    def add(self, salt: str | None, lead: np.ndarray, output: np.ndarray) -> None:
        """Keep `output`. `lead`, the last tokens before it, can be matched but is never part of a continuation.

        Of an output that alone is too long, the last part is kept.
        """
        room = self._max_tokens - 1
        output = output[-room:] if room > 0 else output[:0]
        lead = lead[max(0, len(lead) - (room - len(output))) :]
        if len(lead) + len(output) < 2 or not len(output):
            return
        num_words = len(lead) + len(output) + 1
        while self._num_tokens + num_words > self._max_tokens:
            self._evict()
        if self._index.num_positions + num_words > self._max_tokens + self._max_tokens // 4:
            self._index.drop_before(self._oldest)
            self._oldest = 1
        start = self._index.num_positions
        words = np.concatenate([lead, output])
        self._index.append(to_words(words, self._owner(salt)) + END)
        self._index.link(start, start + max(0, len(lead) - 1), start + num_words - 2)
        self._outputs.append((salt, num_words))
        self._num_outputs[salt] = self._num_outputs.get(salt, 0) + 1
        self._num_tokens += num_words

    def _owner(self, salt: str | None) -> int:
        if salt not in self._owners:
            self._owners[salt] = self._free_owners.pop() if self._free_owners else len(self._owners) + 1
        return self._owners[salt]

    def _evict(self) -> None:
        salt, num_words = self._outputs.popleft()
        self._oldest += num_words
        self._num_tokens -= num_words
        self._num_outputs[salt] -= 1
        if not self._num_outputs[salt]:
            del self._num_outputs[salt]
            self._free_owners.append(self._owners.pop(salt))
