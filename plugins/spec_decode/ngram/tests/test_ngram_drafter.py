"""The drafter against a matcher that reads the whole sequence each time and copies token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.spec import DraftRow
from octavo_ngram.drafter import NgramDrafter
from octavo_ngram.index import NgramIndex
from octavo_ngram.plugin import NgramOptions

RANGES = [(1, 1), (1, 3), (2, 2), (2, 5), (3, 4), (1, 8)]
ALPHABETS: list[Sequence[int]] = [
    [7],
    [0, 1],
    [3, 5, 9],
    range(20),
    [0, 1, 256, 257, 65536, 2**24, 2**31 - 1],  # the same bytes at shifted places
]


def naive_drafts(tokens: Sequence[int], min_n: int, max_n: int, room: int) -> list[int]:
    """The match rule, straight from its words."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):  # the earlier occurrence is tokens[end - n : end]
            if list(tokens[end - n : end]) == list(tokens[-n:]):
                copied = list(tokens)
                for i in range(room):
                    copied.append(copied[end + i])
                return copied[len(tokens) :]
    return []


class Growing:
    """As much of a `SequenceView` as a drafter needs; what lies behind the committed tokens is rubbish."""

    def __init__(self, sequence_id: int, tokens: Sequence[int]) -> None:
        self.sequence_id, self.tokens = sequence_id, list(tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def token_ids(self) -> np.ndarray:
        return np.array([*self.tokens, -1, -1], dtype=np.int32)[: len(self.tokens)]


def make_drafter(min_n: int = 2, max_n: int = 5) -> NgramDrafter:
    target: Any = SimpleNamespace(options=NgramOptions(min_n=min_n, max_n=max_n))
    return NgramDrafter(target)


def propose(drafter: NgramDrafter, *rows: tuple[Growing, int]) -> list[list[int]]:
    return drafter.propose([DraftRow(sequence, 0, room, None) for sequence, room in rows])  # type: ignore[arg-type]


@pytest.mark.parametrize(("min_n", "max_n"), RANGES)
@pytest.mark.parametrize("alphabet", ALPHABETS, ids=len)
def test_equals_the_naive_matcher_however_the_sequence_grows(min_n: int, max_n: int, alphabet: Sequence[int]) -> None:
    num_drafted = 0
    for seed in range(8):
        rng = random.Random(seed)
        drafter, sequence = make_drafter(min_n, max_n), Growing(1, [])
        while sequence.num_tokens < 100:
            copied = rng.randrange(len(sequence.tokens) or 1)
            sequence.tokens += rng.choices(alphabet, k=rng.choice([0, 1, 1, 1, 2, 40]))
            sequence.tokens += sequence.tokens[copied : copied + rng.choice([0, 5, 9])]
            for _ in range(rng.choice([1, 1, 2])):  # asked again, it says the same
                room = rng.randrange(13)
                [drafts] = propose(drafter, (sequence, room))
                assert drafts == naive_drafts(sequence.tokens, min_n, max_n, room)
                num_drafted += len(drafts)
    assert num_drafted > 50


def test_sequences_that_come_and_go_know_nothing_of_each_other() -> None:
    rng = random.Random(5)
    drafter = make_drafter(1, 4)
    live: dict[int, Growing] = {}
    seen: set[int] = set()
    for step in range(300):
        sequence_id = rng.randrange(12)  # ids come back with other tokens
        if sequence_id in live and rng.random() < 0.15:
            drafter.release(sequence_id)
            del live[sequence_id]
            seen.discard(sequence_id)
        live.setdefault(sequence_id, Growing(sequence_id, rng.choices(range(4), k=rng.randint(1, 30))))
        batch = rng.sample(sorted(live), rng.randint(0, len(live)))
        for i in batch:
            live[i].tokens += rng.choices(range(4), k=rng.randint(1, 4))
        rooms = [rng.randrange(7) for _ in batch]
        found = propose(drafter, *((live[i], room) for i, room in zip(batch, rooms, strict=True)))
        assert found == [naive_drafts(live[i].tokens, 1, 4, room) for i, room in zip(batch, rooms, strict=True)], step
        seen.update(batch)
        assert set(drafter._indices) == seen
    for sequence_id in range(12):
        drafter.release(sequence_id)  # also those it never saw
    assert not drafter._indices


def test_a_preempted_sequence_goes_on_under_its_id() -> None:
    """It comes back as a new view, also shorter than it was known, if a step was lost."""
    rng = random.Random(1)
    drafter, tokens = make_drafter(1, 3), rng.choices(range(3), k=40)
    for shown in (10, 10, 25, 26, 19, 40):
        if shown == 19:
            tokens[15:] = rng.choices(range(3), k=25)
        assert propose(drafter, (Growing(4, tokens[:shown]), 6)) == [naive_drafts(tokens[:shown], 1, 3, 6)]
    assert list(drafter._indices) == [4]


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_periodic_text_gives_as_many_drafts_as_there_is_room(period: int) -> None:
    text = [11, 5, 5, 8, 2, 9, 4][:period] * 200
    for length in range(period + 5, period + 15):
        [drafts] = propose(make_drafter(), (Growing(0, text[:length]), 128))
        assert drafts == text[length : length + 128]


@pytest.mark.parametrize(("min_n", "max_n"), RANGES)
def test_no_sequence_is_too_short_or_too_long(min_n: int, max_n: int) -> None:
    drafter = make_drafter(min_n, max_n)
    for length in range(max_n + 1):
        distinct = Growing(length, range(length))
        assert propose(drafter, (distinct, 4)) == [[]]
    long = Growing(99, [3] * 20_000 + list(range(20_000)) + [3] * (max_n + 1))
    assert propose(drafter, (long, 3), (long, 0)) == [[3, 3, 3], []]
    assert propose(drafter) == []


class CountingDict(dict[bytes, int]):
    """Counts look-ups and insertions."""

    num_gets = num_sets = 0

    def get(self, key: bytes, default: Any = None) -> Any:
        self.num_gets += 1
        return super().get(key, default)

    def __setitem__(self, key: bytes, value: int) -> None:
        self.num_sets += 1
        super().__setitem__(key, value)


@pytest.mark.parametrize(("min_n", "max_n"), RANGES)
@pytest.mark.parametrize("alphabet", [1, 2, 30, 10**6])
def test_a_token_costs_the_same_however_long_the_sequence(min_n: int, max_n: int, alphabet: int) -> None:
    rng = random.Random(alphabet)
    tokens = np.array([rng.randrange(alphabet) for _ in range(3000)], dtype=np.int32)
    index, levels = NgramIndex(min_n, max_n), max_n - min_n + 1
    index._ends = CountingDict()
    for length in range(1, len(tokens) + 1):
        before = index._ends.num_gets, index._ends.num_sets
        index.extend(tokens[:length])
        assert index._ends.num_gets - before[0] <= levels
        assert index._ends.num_sets - before[1] <= 2 * levels
    assert len(index._ends) <= len(tokens) * (1 + (levels - 1) / 2)  # what the docstring says of memory
    assert max(map(len, index._ends)) <= max_n * tokens.itemsize


def test_new_text_has_one_entry_for_a_token() -> None:
    index = NgramIndex(2, 5)
    index.extend(np.arange(1000, dtype=np.int32))
    assert len(index._ends) == 999
