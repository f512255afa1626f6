"""Where the n-grams of one growing sequence occurred last.

Owns: `NgramIndex`. Must never know: drafts, requests, batches.
"""

from __future__ import annotations

import numpy as np

_TOKEN_BYTES = np.dtype(np.int32).itemsize


class NgramIndex:
    """Finds the longest suffix of min_n to max_n tokens that occurred before, and where it did so last.

    The index is a trie over the tokens read backwards, kept as one dict from an n-gram's bytes to the position of its
    last token, and grown only where it branches: an n-gram longer than min_n is entered once the gram without its
    first token occurred twice, for until then it has nothing to tell apart. Inserting a token walks down this trie,
    and where the walk ends is the match for that token, so finding costs nothing on top.

    Keys are the tokens themselves, so no match rests on a hash. A new token costs at most max_n - min_n + 1 look-ups
    and twice as many insertions, whatever the length of the sequence. Memory: at most 1 + (max_n - min_n) / 2 entries
    for each token, each of some 110 bytes; measured with 2 to 5, 90 to 130 bytes for each token.
    """

    __slots__ = ("_ends", "_max_n", "_min_n", "match_end", "num_tokens")

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n, self._max_n = min_n, max_n
        self._ends: dict[bytes, int] = {}
        """Last position of an n-gram that occurred twice or more; ~position of one that occurred once."""
        self.num_tokens = 0
        """Tokens taken in."""
        self.match_end: int | None = None
        """Where the longest suffix that occurred before ended, the last time before now; None: it never did."""

    def extend(self, token_ids: np.ndarray) -> None:
        """Take in what follows the first `num_tokens` of `token_ids`, int32 [at least num_tokens], all of the sequence.

        Overlapping occurrences count: the match may end at the last token but one.
        """
        ends, min_size, max_size = self._ends, _TOKEN_BYTES * self._min_n, _TOKEN_BYTES * self._max_n
        start = max(0, self.num_tokens - self._max_n + 1)
        tail = token_ids[start:].tobytes()  # from the first token of the longest new n-gram
        for position in range(max(self.num_tokens, self._min_n - 1), len(token_ids)):
            self.match_end = None
            stop = _TOKEN_BYTES * (position + 1 - start)
            for first in range(stop - min_size, max(0, stop - max_size) - 1, -_TOKEN_BYTES):
                gram = tail[first:stop]
                end = ends.get(gram)
                if end is None:
                    ends[gram] = ~position
                    break
                ends[gram] = position
                if end < 0:  # the second time: from now on the token before tells the two apart
                    end = ~end
                    size = stop - first
                    before = end - size // _TOKEN_BYTES
                    if size < max_size and before >= 0:
                        ends[token_ids[before : end + 1].tobytes()] = ~end
                self.match_end = end
        self.num_tokens = len(token_ids)
