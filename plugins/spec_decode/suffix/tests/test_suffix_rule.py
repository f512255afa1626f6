"""Drafts against the rule written out: no index, every place compared, exact fractions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.spec import DraftRow
from octavo_suffix.drafter import SuffixDrafter
from octavo_suffix.plugin import SuffixOptions


@dataclass
class View:
    """A sequence as a drafter sees it."""

    sequence_id: int
    prompt: list[int]
    salt: str | None = None
    output: list[int] = field(default_factory=list)
    child_index: int = 0

    @property
    def request(self) -> Any:
        return SimpleNamespace(cache_salt=self.salt, prompt_token_ids=tuple(self.prompt))

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def token_ids(self) -> np.ndarray:
        return np.array(self.prompt + self.output, dtype=np.int32)

    @property
    def prompt_token_ids(self) -> np.ndarray:
        return self.token_ids[: len(self.prompt)]

    @property
    def output_token_ids(self) -> np.ndarray:
        return self.token_ids[len(self.prompt) :]


def new_drafter(**options: Any) -> SuffixDrafter:
    target: Any = SimpleNamespace(options=SuffixOptions(**options))
    return SuffixDrafter(target)


def draft(drafter: SuffixDrafter, view: View, max_drafts: int = 100) -> list[int]:
    (drafts,) = drafter.propose([DraftRow(view, 0, max_drafts, None)])
    return list(drafts)


class Naive:
    """The rule of the README."""

    def __init__(self, options: SuffixOptions) -> None:
        self.options = options
        self.outputs: list[tuple[str | None, list[int], list[int]]] = []  # salt, lead, output; oldest first

    def release(self, view: View) -> None:
        room = self.options.max_cached_tokens - 1
        if not view.output or room < 1:
            return
        output = view.output[-room:]
        lead = view.prompt[-max(self.options.match_lens) :]
        lead = lead[len(lead) - min(len(lead), room - len(output)) :]
        if len(lead) + len(output) < 2:
            return
        self.outputs.append((view.salt, lead, output))
        while sum(len(lead) + len(output) + 1 for _, lead, output in self.outputs) > self.options.max_cached_tokens:
            del self.outputs[0]

    def draft(self, view: View, max_drafts: int) -> list[int]:
        best, best_key = [], (Fraction(0), 0, 0)
        tokens = view.prompt + view.output
        for match_len in self.options.match_lens:
            max_len = int(min(max_drafts, self.options.factor * match_len + self.options.offset))
            context = tokens[-match_len:]
            if len(tokens) < match_len:
                continue
            for is_own, rows in ((1, self._own(tokens, context, max_len)), (0, self._shared(view.salt, context))):
                path, score = self._walk(rows[: self.options.max_occurrences], max_len)
                if score and (score, match_len, is_own) > best_key:
                    best, best_key = path, (score, match_len, is_own)
        return best

    def _own(self, tokens: list[int], context: list[int], max_len: int) -> list[list[int]]:
        rows = []
        for place in range(len(tokens) - 2, len(context) - 2, -1):
            if tokens[: place + 1][-len(context) :] != context:
                continue
            row = list(tokens)
            for _ in range(max(0, max_len)):
                row.append(row[place + 1 + len(row) - len(tokens)])  # the copy reads what it wrote
            rows.append(row[place + 1 :])
        return rows

    def _shared(self, salt: str | None, context: list[int]) -> list[list[int]]:
        rows = []
        for owner, lead, output in reversed(self.outputs):
            text = lead + output
            for place in range(len(text) - 2, max(0, len(lead) - 1) - 1, -1):
                if owner == salt and place + 1 >= len(context) and text[: place + 1][-len(context) :] == context:
                    rows.append(text[place + 1 :])
        return rows

    def _walk(self, rows: list[list[int]], max_len: int) -> tuple[list[int], Fraction]:
        path, probability, score = [], Fraction(1), Fraction(0)
        while len(path) < max_len:
            votes = Counter(row[len(path)] for row in rows if len(row) > len(path))
            if not votes:
                break
            token, count = max(votes.items(), key=lambda vote: vote[1])  # the first of equals: the latest
            probability *= Fraction(count, votes.total())
            if probability < Fraction(self.options.min_probability):
                break
            rows = [row for row in rows if row[len(path) : len(path) + 1] == [token]]
            path.append(token)
            score += probability
        return path, score


def draw_options(rng: random.Random) -> SuffixOptions:
    return SuffixOptions(
        match_lens=(rng.choice([1, 2]), *rng.sample(range(1, 8), rng.randint(0, 3))),
        max_occurrences=rng.choice([1, 2, 3, 16]),
        factor=rng.choice([0.5, 1.0, 2.0, 4.0]),
        offset=rng.choice([-2.0, 0.0, 1.0]),
        min_probability=rng.choice([0.0, 0.25, 0.5, 1.0]),
        max_cached_tokens=rng.choice([0, 1, 2, 7, 40, 200, 1000]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_those_of_the_rule(seed: int) -> None:
    """Sequences come, grow in turns by a few tokens, are drafted for or not, and go; some share a salt."""
    rng = random.Random(seed)
    options, alphabet = draw_options(rng), rng.choice([1, 2, 3, 5])
    drafter, naive = new_drafter(**{f: getattr(options, f) for f in options.__struct_fields__}), Naive(options)
    live: list[View] = []
    num_drafts = 0
    for sequence_id in range(120):
        if len(live) < 4 and rng.random() < 0.4:
            prompt = rng.choices(range(alphabet), k=rng.choice([1, 2, 8, 70]))
            live.append(View(sequence_id, prompt, rng.choice([None, "", "a"])))
        for view in live:
            view.output += rng.choices(range(alphabet), k=rng.choice([0, 1, 1, 3]))
        max_drafts = rng.choice([0, 1, 3, 12])
        views = rng.sample(live, rng.randint(0, len(live)))
        drafts = [list(d) for d in drafter.propose([DraftRow(view, 0, max_drafts, None) for view in views])]
        assert drafts == [naive.draft(view, max_drafts) for view in views]
        num_drafts += sum(map(len, drafts))
        for view in [view for view in views if rng.random() < 0.15]:
            live.remove(view)
            view.output += rng.choices(range(alphabet), k=rng.choice([0, 2]))  # of a step without a proposal
            drafter.release(view.sequence_id)
            naive.release(view)
    assert num_drafts or options.factor * min(options.match_lens) + options.offset < 1


def test_a_walk_follows_the_majority_and_stops_where_it_splits() -> None:
    drafter = new_drafter(match_lens=(1,), factor=10.0, min_probability=0.5)
    told = [9, 1, 2, 3, 9, 1, 2, 4, 9, 1, 5, 6]
    assert draft(drafter, View(0, [*told, 9])) == [1, 2]  # 1 for sure, 2 by 2 of 3, then 1/3 each
    drafter = new_drafter(match_lens=(1,), factor=10.0, min_probability=0.3)
    assert draft(drafter, View(0, [*told, 9]))[:3] == [1, 2, 4]  # the latest of equals


def test_a_copy_that_overtakes_itself_goes_on_with_what_it_wrote() -> None:
    drafter = new_drafter(match_lens=(2,), factor=4.0)
    assert draft(drafter, View(0, [5, 6, 7, 5, 6])) == [7, 5, 6, 7, 5, 6, 7, 5]


def test_the_longer_match_wins_over_an_equal_score_and_the_better_score_over_all() -> None:
    drafter = new_drafter(match_lens=(1, 2), factor=2.0, min_probability=0.6)
    assert draft(drafter, View(0, [1, 2, 3, 9, 2, 4, 9, 1, 2])) == [3, 9, 2, 4]  # 2 alone splits between 3 and 4
    drafter = new_drafter(match_lens=(1, 2), factor=0.0, offset=2.0)
    assert draft(drafter, View(1, [1, 2, 3, 3, 9, 2, 4, 9, 2, 4, 9, 1, 2])) == [3, 3]  # 2 for sure against 2/3 twice


def test_room_and_match_length_cap_the_drafts() -> None:
    repeated = View(0, [1, 2, 3, 4, 5, 6, 7, 8] * 5)
    cases = [(2.0, 0.0, 100, 8), (1.0, 1.0, 100, 5), (9.0, 0.0, 7, 7), (1.0, -9.0, 9, 0), (1.0, 0.0, -3, 0)]
    for factor, offset, max_drafts, expected in cases:
        drafter = new_drafter(match_lens=(4,), factor=factor, offset=offset)
        assert draft(drafter, repeated, max_drafts) == repeated.prompt[:expected]


@pytest.mark.parametrize(
    "tokens", [[3], [3, 3], [0] * 5000, [2**31 - 1] * 50, [-1] * 50, [-1, -256, 7] * 50, list(range(20_000))]
)
def test_any_sequence_is_taken(tokens: list[int]) -> None:
    drafter = new_drafter()
    view = View(0, tokens[: len(tokens) // 2 or 1])
    for end in (1, len(tokens) // 3, len(tokens) - 1, len(tokens)):
        view.output = tokens[len(view.prompt) : max(len(view.prompt), end)]
        assert len(draft(drafter, view, 5)) <= 5
    drafter.release(0)
    again = View(1, tokens)
    assert len(draft(drafter, again, 5)) <= 5
    drafter.release(1)


def test_a_sequence_that_was_rewritten_is_indexed_anew() -> None:
    """A step that failed half-way may leave tokens that are then taken back."""
    drafter = new_drafter(match_lens=(2,), factor=1.0)
    view = View(0, [1, 2, 3, 1, 2])
    assert draft(drafter, view) == [3, 1]
    view.output = [9, 9, 1, 2]
    assert draft(drafter, view) == [9, 9]
    view.output = [4, 1, 2]
    assert draft(drafter, view) == [4, 1]
    drafter.release(0)
    assert draft(drafter, View(1, [2, 9])) == []
    assert draft(drafter, View(2, [2, 4])) == [1, 2]


def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    rng = random.Random(0)
    views = [View(i, rng.choices(range(3), k=30)) for i in range(8)]
    together = new_drafter().propose([DraftRow(view, 0, 9, None) for view in views])
    assert [list(d) for d in together] == [draft(new_drafter(), view, 9) for view in views]
    assert any(together)
