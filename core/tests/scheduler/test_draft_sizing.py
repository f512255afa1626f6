"""How many drafts are verified: against a search of all choices, and over texts that change."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from octavo.request import Request
from octavo.scheduler import AdaptiveDrafts, Scheduler, Sequence, StepCosts
from octavo.step import SequenceResult, StepResult

FLAT = StepCosts([1, 2, 16, 32], [0.1, 0.15, 0.16, 0.26])
LINEAR = StepCosts([1, 64], [1.0, 64.0])
"""Every token costs the same: no draft that may be wrong is worth it."""


class FixedCosts(StepCosts):
    """A table that real steps do not correct."""

    def correct(self, num_tokens: int, seconds: float) -> None: ...


class Known(AdaptiveDrafts):
    """With chances that are given instead of measured."""

    def __init__(self, costs: StepCosts, chances: dict[int, list[float]]) -> None:
        super().__init__(costs)
        self.chances = chances

    def survival(self, sequence_id: int, num_drafts: int) -> list[float]:
        return self.chances[sequence_id][:num_drafts]


@pytest.fixture
def make_sequence(make_scheduler, make_request) -> Callable[..., Sequence]:
    """`make_sequence(id, number of missing tokens, number of drafts)`."""

    def make(sequence_id: int, num_missing: int, num_drafts: int) -> Sequence:
        blocks = make_scheduler()._kv.new_blocks()
        sequence = Sequence(sequence_id, make_request([1] * 40), 0, blocks, 1000)
        sequence.num_computed_tokens = 40 - num_missing
        sequence.draft_token_ids = tuple(range(100, 100 + num_drafts))
        return sequence

    return make


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_the_best_of_all(seed: int, make_sequence) -> None:
    rng = random.Random(seed)
    seconds = list(itertools.accumulate(rng.choice([0.0, 0.01, 0.1, 0.5]) for _ in range(7)))
    costs = StepCosts([1, 2, 4, 8, 16, 32, 64], [0.1 + s for s in seconds])
    sequences, chances = [], {}
    for i in range(rng.randint(1, 4)):
        prefilling = i > 0 and rng.random() < 0.3
        length = 0 if prefilling else rng.randint(0, 4)
        sequences.append(make_sequence(i, rng.randint(2, 20) if prefilling else 1, length))
        alone = [rng.random() for _ in range(length)]
        chances[i] = list(itertools.accumulate(alone, lambda a, b: a * b))
    num_tokens = sum(len(s.token_ids) - s.num_computed_tokens for s in sequences)
    num_decoding = sum(len(s.token_ids) - s.num_computed_tokens == 1 for s in sequences)
    budget = num_tokens + rng.randint(0, 10)

    def rate(counts: tuple[int, ...]) -> float:
        expected = num_decoding + sum(sum(chances[i][:n]) for i, n in enumerate(counts))
        total = num_tokens + sum(counts)
        added = costs.curve(total, 1)[0] - costs.curve(num_tokens, 1)[0]
        return expected / (costs.curve(num_decoding, 1)[0] + added)

    possible = [
        counts
        for counts in itertools.product(*(range(len(s.draft_token_ids) + 1) for s in sequences))
        if num_tokens + sum(counts) <= budget
    ]
    best, none = max(map(rate, possible)), rate((0,) * len(sequences))
    before = [s.draft_token_ids for s in sequences]
    Known(costs, chances).choose(sequences, budget)
    counts = tuple(len(s.draft_token_ids) for s in sequences)
    assert counts in possible
    assert [s.draft_token_ids for s in sequences] == [d[:n] for d, n in zip(before, counts, strict=True)]
    if best > 1.031 * none:
        assert rate(counts) == pytest.approx(best)
    elif best < 1.029 * none:
        assert sum(counts) == 0


def test_no_budget_is_no_draft(make_sequence) -> None:
    sequence = make_sequence(1, 1, 4)
    Known(FLAT, {1: [0.9] * 4}).choose([sequence], 1)
    assert sequence.draft_token_ids == ()


class Text:
    """One sequence that generates `tokens` while drafts come from `propose(position)`."""

    def __init__(self, drafts: AdaptiveDrafts, sequence: Sequence, tokens: list[int]) -> None:
        self.drafts, self.sequence, self.tokens, self.position = drafts, sequence, tokens, 0
        self.verified: list[tuple[int, int]] = []
        """(position, number of verified drafts) of each step."""

    def step(self, propose: Callable[[int], tuple[int, ...]]) -> None:
        chosen = self.sequence.draft_token_ids
        right = 0
        while right < len(chosen) and chosen[right] == self.tokens[self.position + right]:
            right += 1
        self.verified.append((self.position, len(chosen)))
        new = self.tokens[self.position : self.position + right + 1]
        self.position += len(new)
        self.sequence.draft_token_ids = propose(self.position)
        self.drafts.observe(self.sequence, new, self.sequence.draft_token_ids)
        self.drafts.choose([self.sequence], 1000)


def test_wrong_drafts_stop_being_verified_and_right_ones_start_again(make_sequence) -> None:
    tokens = [random.Random(0).randrange(1000) for _ in range(400)]
    right = range(150, 260)

    def propose(position: int) -> tuple[int, ...]:
        return tuple(tokens[position : position + 8]) if position in right else (-1,) * 8

    text = Text(AdaptiveDrafts(FLAT), make_sequence(1, 1, 0), tokens)
    while text.position < 380:
        text.step(propose)
    wrong = [n for position, n in text.verified if not right.start <= position < right.stop]
    assert sum(n > 0 for n in wrong) < 12, "wrong drafts are verified again and again"
    inside = [(position, n) for position, n in text.verified if position in right]
    first = next(position for position, n in inside if n > 0)
    assert first - right.start <= 8, "right drafts were not noticed"
    assert [n for position, n in inside if right.start + 40 < position < right.stop - 10].count(8) >= 5


def test_what_is_not_verified_is_measured_all_the_same(make_sequence) -> None:
    """At a cost at which nothing is ever verified, the estimate still becomes that of the text, at every position."""
    rng = random.Random(1)
    tokens = [rng.randrange(1000) for _ in range(3000)]

    def propose(position: int) -> tuple[int, ...]:
        drafts = []
        for j in range(6):  # the first is right half of the time, one after right ones in four of five cases
            keep = rng.random() < (0.5 if j == 0 else 0.8)
            drafts.append(tokens[position + j] if keep else -1)
        return tuple(drafts)

    drafts = AdaptiveDrafts(LINEAR)
    text = Text(drafts, make_sequence(1, 1, 0), tokens)
    found = []
    while text.position < 2900:
        text.step(propose)
        found.append(drafts.survival(1, 6))
    assert {n for _, n in text.verified} == {0}
    mean = [sum(f[j] for f in found) / len(found) for j in range(2)]
    assert mean[0] == pytest.approx(0.5, abs=0.05)
    assert mean[1] / mean[0] == pytest.approx(0.8, abs=0.08)


def test_a_new_sequence_starts_from_what_others_have_seen(make_sequence) -> None:
    for chance, verifies in ((1.0, True), (0.0, False)):
        drafts = AdaptiveDrafts(FLAT)
        for i in range(20):
            old = make_sequence(i, 1, 0)
            drafts.observe(old, (5,), (7, 8, 9))
            drafts.observe(old, (7, 8, 9) if chance else (1,), ())
        new = make_sequence(99, 1, 3)
        drafts.observe(new, (5,), new.draft_token_ids)
        drafts.choose([new], 1000)
        assert bool(new.draft_token_ids) == verifies


def test_nothing_is_left_of_sequences_that_ended(make_scheduler, make_request) -> None:
    drafts = AdaptiveDrafts(FixedCosts([1, 2], [1.0, 1.0]))
    scheduler: Scheduler = make_scheduler()
    scheduler._draft_sizing = drafts
    request: Request = make_request([1, 2, 3], max_tokens=4)
    scheduler.add(1, request)
    scheduler.mark_ready(1)
    num_verified = 0
    while scheduler.num_running or scheduler.num_waiting:
        plan = scheduler.schedule()
        (planned,) = plan.scheduled
        num_verified += len(planned.draft_token_ids)
        outcome = SequenceResult(1, (*planned.draft_token_ids, 5), draft_token_ids=(6, 7, 8, 9))
        scheduler.commit(plan, StepResult(plan.step_id, (outcome,)), 0.1)
        scheduler.check_integrity()
    assert num_verified > 0
    assert not drafts._records


def test_drafts_over_a_cache_that_cannot_be_rewound_are_dropped(make_scheduler, make_request) -> None:
    scheduler: Scheduler = make_scheduler()
    assert scheduler._kv.rewindable
    scheduler._kv.rewindable = False
    scheduler.add(1, make_request([1, 2, 3]))
    scheduler.mark_ready(1)
    plan = scheduler.schedule()
    scheduler.commit(plan, StepResult(plan.step_id, (SequenceResult(1, (5,), draft_token_ids=(6, 7)),)))
    assert scheduler.schedule().scheduled[0].draft_token_ids == ()


def test_only_steps_without_prompts_tell_what_a_step_costs(make_scheduler, make_request) -> None:
    timed: list[tuple[int, float]] = []

    class Watched(AdaptiveDrafts):
        def timed(self, num_tokens: int, seconds: float) -> None:
            timed.append((num_tokens, seconds))

    scheduler: Scheduler = make_scheduler()
    scheduler._draft_sizing = Watched(FLAT)
    for i in (1, 2):
        scheduler.add(i, make_request([i] * 3))
        scheduler.mark_ready(i)
    for duration in (0.5, 0.25, None):
        plan = scheduler.schedule()
        results = tuple(SequenceResult(s.sequence_id, (5,)) for s in plan.scheduled)
        scheduler.commit(plan, StepResult(plan.step_id, results), duration)
    assert timed == [(2, 0.25)]
