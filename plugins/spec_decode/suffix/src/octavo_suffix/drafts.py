"""From what followed a context before to what is likely to follow now.

Owns: `Walk`, `likeliest`. Must never know: where continuations come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Walk(NamedTuple):
    """Words, one after the other."""

    words: list[int]
    score: float
    """How many of the words will be accepted, as far as the votes tell: the sum of the words' probabilities."""


NOTHING = Walk([], 0.0)


def likeliest(continuations: Mapping[bytes, int], min_probability: float) -> Walk:
    """Walk from word to word along the most frequent continuation (SuffixDecoding, arXiv 2411.04975).

    `continuations` are strings of 64-bit words with their counts, latest first. A word's probability is that of the one
    before it, times its share of the continuations that agree so far and go on. Ties go to the latest. The walk ends
    before the first word whose probability is below `min_probability`.
    """
    rows = [(memoryview(words).cast("q").tolist(), count) for words, count in continuations.items()]
    path: list[int] = []
    probability, score = 1.0, 0.0
    while rows:
        depth = len(path)
        if len(rows) == 1:  # nobody disagrees any more
            rest = rows[0][0][depth:]
            return Walk(path + rest, score + probability * len(rest))
        votes: dict[int, int] = {}
        for words, count in rows:
            if depth < len(words):
                votes[words[depth]] = votes.get(words[depth], 0) + count
        if not votes:
            break
        best = max(votes, key=votes.__getitem__)
        probability *= votes[best] / sum(votes.values())
        if probability < min_probability:
            break
        path.append(best)
        score += probability
        rows = [row for row in rows if depth < len(row[0]) and row[0][depth] == best]
    return Walk(path, score)
