"""What every engine is asked: W1 to W4, and what warms it up.

Owns: token ids and lengths. Must never know: engines, time.

No two workloads share a prompt, so that what a prefix cache keeps of one does not help in the next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LOWEST_ID = 50
"""Ids below are special or single bytes in most vocabularies."""
HIGHEST_ID = 49_000
"""One more than the largest id that is drawn, in a vocabulary that has so many."""
PREFIX_LENGTH = 1_024


@dataclass(frozen=True, slots=True)
class Query:
    """A request: greedy, and exactly as many tokens out as asked for."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


def workloads(vocab_size: int = HIGHEST_ID, scale: float = 1.0) -> dict[str, list[Query]]:
    """W1 to W4 by name. `scale` below 1 asks for that part of the requests, or of W2's tokens; at least something."""
    high = min(HIGHEST_ID, vocab_size)
    w1 = _mixed(random.Random(0), _part(64, scale, 4), high)
    w2 = random.Random("W2")
    prefix_of_w3 = random.Random("W3")
    prefix = _ids(prefix_of_w3, PREFIX_LENGTH, high)
    return {
        "W1": w1,
        "W2": [Query(_ids(w2, 300, high), _part(200, scale, 16))],
        "W3": [Query(prefix + _ids(prefix_of_w3, 32, high), 64) for _ in range(_part(64, scale, 4))],
        "W4": _fresh(_mixed(random.Random(0), _part(8, scale, 2), high), random.Random("W4"), high),
    }


def warm_up(vocab_size: int = HIGHEST_ID) -> list[Query]:
    """A few requests of different lengths, so that whatever is compiled or measured at first use is done with."""
    draw, high = random.Random("warm-up"), min(HIGHEST_ID, vocab_size)
    return [Query(_ids(draw, 48 + 24 * i, high), 8 + i) for i in range(8)]


def first_request(vocab_size: int = HIGHEST_ID) -> Query:
    """The one whose first token ends the start of an engine."""
    return Query(_ids(random.Random("first"), 32, min(HIGHEST_ID, vocab_size)), 1)


def _mixed(draw: random.Random, num_requests: int, high: int) -> list[Query]:
    """32 to 512 ids in, 32 to 256 out: 18,983 and 9,469 altogether for 64 requests of seed 0.

    A request's numbers are drawn in the order length, ids, output, so the first n requests are the same for any
    number of them.
    """
    queries = []
    for _ in range(num_requests):
        ids = _ids(draw, draw.randrange(32, 512), high)
        queries.append(Query(ids, draw.randrange(32, 256)))
    return queries


def _fresh(queries: list[Query], draw: random.Random, high: int) -> list[Query]:
    """Queries of the same lengths with other ids."""
    return [Query(_ids(draw, len(q.prompt_token_ids), high), q.num_output_tokens) for q in queries]


def _ids(draw: random.Random, count: int, high: int) -> tuple[int, ...]:
    return tuple(draw.randrange(LOWEST_ID, high) for _ in range(count))


def _part(whole: int, scale: float, least: int) -> int:
    return min(whole, max(least, round(whole * scale)))
