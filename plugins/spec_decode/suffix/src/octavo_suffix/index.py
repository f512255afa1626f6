"""Finds what followed a context: an append-only row of words, with chains of places where the last n words are alike.

Owns: `ContextIndex` and the form of its words. Must never know: sequences, probabilities, why something is appended.

A word is 64 bits: a token id below, the number of its owner above. Words of different owners are never equal, so
nothing that is found can be another owner's. A place is looked up by the bytes of the n words that end there: a table
of buckets has the latest place of each bucket, and each place the one before it in its bucket. Bytes are compared on
the way, so two contexts in one bucket cost time and change nothing.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import numpy as np

WORD = 8
"""Bytes of a word."""
TOKEN_BITS = 32
END = b"\xff" * WORD
"""The word between texts: no token of any owner, for owners' numbers are not negative."""


def to_words(token_ids: np.ndarray, owner: int = 0) -> bytes:
    """The words of `token_ids` (int32) that belong to `owner`."""
    return ((token_ids.astype(np.int64) & 0xFFFFFFFF) | (owner << TOKEN_BITS)).tobytes()


def to_token_ids(words: Sequence[int]) -> list[int]:
    """The token ids of words, whoever owns them."""
    return [word & 0xFFFFFFFF for word in words]


class ContextIndex:
    """Positions count words; position 0 holds `END`, so that 0 can stand for "no place" in the chains."""

    __slots__ = ("_chains", "_mask", "_words", "match_lens")

    def __init__(self, match_lens: Sequence[int], num_buckets: int) -> None:
        """`num_buckets` is a power of two; lookups take a few more steps when there are more positions than that."""
        self.match_lens = match_lens
        self._mask = num_buckets - 1
        self._words = bytearray(END)
        self._chains = {n: (array("i", bytes(4 * num_buckets)), array("i", [0])) for n in match_lens}

    @property
    def num_buckets(self) -> int:
        return self._mask + 1

    @property
    def num_positions(self) -> int:
        return len(self._words) // WORD

    @property
    def num_bytes(self) -> int:
        """Memory that is held, in bytes."""
        arrays = [part for chain in self._chains.values() for part in chain]
        return sys.getsizeof(self._words) + sum(map(sys.getsizeof, arrays))

    def tail(self, num_words: int) -> bytes:
        """The last words, up to so many."""
        return bytes(self._words[max(WORD, len(self._words) - WORD * num_words) :])

    def append(self, words: bytes) -> None:
        """Add words at the end. They can be found once they are linked."""
        self._words += words
        for _, previous in self._chains.values():
            previous.frombytes(bytes(len(words) // WORD * previous.itemsize))

    def link(self, start: int, first: int, end: int) -> None:
        """Let the positions `first` … `end - 1`, of a text that begins at `start`, be found.

        Only positions with a word behind them are worth it. Each at most once, and in rising order.
        """
        base = max(start, first - max(self.match_lens) + 1)
        text, mask = bytes(self._words[WORD * base : WORD * end]), self._mask
        for match_len, (latest, previous) in self._chains.items():
            width = WORD * match_len
            position = max(first, start + match_len - 1)
            for stop in range(WORD * (position + 1 - base), len(text) + 1, WORD):
                bucket = hash(text[stop - width : stop]) & mask
                previous[position] = latest[bucket]
                latest[bucket] = position
                position += 1

    def continuations(
        self, context: bytes, match_len: int, max_occurrences: int, max_len: int, oldest: int = 1
    ) -> dict[bytes, int]:
        """Up to `max_len` words that followed the last `match_len` words of `context`, and how often; latest first.

        From the latest `max_occurrences` linked places at `oldest` or after it. A text that ends gives fewer words; one
        that goes on growing repeats what it has from the match on, as a copy does that overtakes itself.
        """
        width, room = WORD * match_len, WORD * max_len
        pattern = context[-width:]
        found: dict[bytes, int] = {}
        if len(pattern) < width:
            return found
        words, (latest, previous) = self._words, self._chains[match_len]
        position, num_left = latest[hash(pattern) & self._mask], max_occurrences
        while position >= oldest and num_left:
            stop = WORD * (position + 1)
            if words.startswith(pattern, stop - width):
                num_left -= 1
                row = bytes(words[stop : stop + room])
                if END in row:
                    row = row[: row.index(END)]
                elif len(row) < room:
                    row = (row * (room // len(row) + 1))[:room]
                found[row] = found.get(row, 0) + 1
            position = previous[position]
        return found

    def drop_before(self, position: int) -> None:
        """Forget everything before `position`, which becomes position 1. Takes time for all that is left."""
        self._words = bytearray(END) + self._words[WORD * position :]
        for match_len, (latest, previous) in self._chains.items():
            self._chains[match_len] = (
                _shifted(np.frombuffer(latest, np.int32), position - 1),
                _shifted(np.frombuffer(previous, np.int32)[position - 1 :], position - 1),
            )


def _shifted(positions: np.ndarray, shift: int) -> array[int]:
    """Positions after `shift` of them were dropped, with 0 for each of those."""
    return array("i", np.maximum(positions - np.int32(shift), 0).tobytes())
