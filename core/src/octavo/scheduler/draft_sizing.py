"""How many of the proposed drafts a step verifies.

Owns: the measured acceptance, and the choice of drafts. Must never know: who drafted, how tokens are computed, budgets
other than the one it is given.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from operator import itemgetter

from octavo.scheduler.sequence import Sequence
from octavo.scheduler.step_costs import StepCosts

_BUCKETS = (0, *(1 + position.bit_length() for position in range(1, 129)))
"""Kind of each position of a proposal: the first (0, or 1 if the last prediction was right), 1, 2-3, 4-7, 8-15, …
As many as `speculation.num_draft_tokens` allows."""
_NUM_BUCKETS = max(_BUCKETS) + 1
_FIRST = itemgetter(0)
_MEMORY = 0.9
"""What a sequence's older predictions count for after each new one, so that it follows a text that changes."""
_SHARED_MEMORY = 0.98
_PRIOR_TRIALS = 2.0
"""As how many predictions of its own a sequence takes what all sequences have seen."""
_LEAST_CHANCE = 0.02
"""Drafts less likely than this are not looked at."""
_LEAST_GAIN = 1.03
"""Drafts have to promise this much: estimates err, and the best of many errs upwards."""


class Acceptance:
    """How often predictions came true, by kind of position; older ones fade."""

    __slots__ = ("hits", "memory", "trials")

    def __init__(self, memory: float, hits: float = 0.0, trials: float = 0.0) -> None:
        self.memory = memory
        self.hits, self.trials = [hits] * _NUM_BUCKETS, [trials] * _NUM_BUCKETS

    def count(self, bucket: int, came_true: bool) -> None:
        self.hits[bucket] = self.memory * self.hits[bucket] + came_true
        self.trials[bucket] = self.memory * self.trials[bucket] + 1.0


class _Record:
    """What is known of one sequence's drafts."""

    __slots__ = ("acceptance", "drafts", "older", "older_position", "was_right")

    def __init__(self) -> None:
        self.acceptance = Acceptance(_MEMORY)
        self.drafts: SequenceOf[int] = ()
        """The newest proposal, verified or not."""
        self.older: SequenceOf[int] = ()
        """A proposal that has come true so far, and the position from which on that is still to be seen."""
        self.older_position = 0
        self.was_right = False
        """Whether the last token was predicted."""


class AllDrafts:
    """Verifies whatever is proposed. Also says what a sizer is asked and told."""

    def choose(self, sequences: SequenceOf[Sequence], budget: int) -> None:
        """Cut the drafts of `sequences`, all that run, for a step of at most `budget` tokens."""

    def observe(self, sequence: Sequence, token_ids: SequenceOf[int], drafts: SequenceOf[int]) -> None:
        """`token_ids` were generated; `drafts`, perhaps none, are proposed to follow them."""

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended."""

    def timed(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` tokens, all with logits, took so long."""


class AdaptiveDrafts(AllDrafts):
    """Verifies as many drafts as promise the most tokens per second: expected tokens over the cost of the step.

    A step gives each sequence one token and those drafts that are accepted. A draft is accepted if it is right and all
    before it are, so within a sequence the chances fall, and the best set of any size is a prefix of all drafts sorted
    by chance. The step's cost comes from a table in which it may rise in stairs, so every size is looked at. Prompts in
    the same step are paid for anyway: only what drafts add to their cost is charged.

    Every proposal is compared with the tokens that follow it, whether it was verified or not. So with few or no drafts
    in the steps the measurement goes on for nothing, and drafts come back when the text becomes predictable. (For a
    drafter that draws its drafts, under a verifier that accepts more than equal tokens, that is a lower bound.)

    The drafter is asked after each step, even if none of its drafts was verified for long: its time is taken to be
    small against a step's.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._records: dict[int, _Record] = {}
        self._all = Acceptance(_SHARED_MEMORY, hits=1.0, trials=2.0)

    def choose(self, sequences: SequenceOf[Sequence], budget: int) -> None:
        drafted = [s for s in sequences if s.draft_token_ids]
        if not drafted:
            return
        num_missing = [len(s.token_ids) - s.num_computed_tokens for s in sequences]
        num_tokens, num_decoding = sum(num_missing), num_missing.count(1)
        chances = [
            (chance, i)
            for i, s in enumerate(drafted)
            for chance in self.survival(s.sequence_id, len(s.draft_token_ids))
        ]
        chances.sort(key=_FIRST, reverse=True)  # stable: a sequence's drafts stay in their order
        del chances[max(0, budget - num_tokens) :]
        costs = self._costs.curve(num_tokens, len(chances) + 1)
        paid_anyway = costs[0] - self._costs.curve(num_decoding, 1)[0]
        expected, best, best_rate = float(num_decoding), 0, _LEAST_GAIN * num_decoding / (costs[0] - paid_anyway)
        for count, ((chance, _), cost) in enumerate(zip(chances, costs[1:], strict=True), 1):
            expected += chance
            rate = expected / (cost - paid_anyway)
            if rate > best_rate:
                best, best_rate = count, rate
        num_chosen = [0] * len(drafted)
        for _, i in chances[:best]:
            num_chosen[i] += 1
        for sequence, count in zip(drafted, num_chosen, strict=True):
            sequence.draft_token_ids = sequence.draft_token_ids[:count]

    def survival(self, sequence_id: int, num_drafts: int) -> list[float]:
        """The chance of each draft to be accepted: right, and all before it too. Up to where it is next to nothing."""
        record, shared = self._records[sequence_id], self._all
        own = record.acceptance
        kinds = zip(own.hits, own.trials, shared.hits, shared.trials, strict=True)
        alone = [(h + _PRIOR_TRIALS * all_h / all_t) / (t + _PRIOR_TRIALS) for h, t, all_h, all_t in kinds]
        chance = alone[1 if record.was_right else 0]
        chances = [chance]
        for bucket in _BUCKETS[1:num_drafts]:
            chance *= alone[bucket]
            if chance < _LEAST_CHANCE:
                break
            chances.append(chance)
        return chances

    def observe(self, sequence: Sequence, token_ids: SequenceOf[int], drafts: SequenceOf[int]) -> None:
        record = self._records.get(sequence.sequence_id)
        if record is None:
            record = self._records[sequence.sequence_id] = _Record()
        elif record.drafts or record.older:
            self._score(record, token_ids)
        record.drafts = drafts

    def _score(self, record: _Record, token_ids: SequenceOf[int]) -> None:
        if record.older:
            end = self._compare(record, record.older, record.older_position, token_ids)
            record.older_position = end
            if end == 0 or end >= len(record.older):
                record.older = ()
        end = self._compare(record, record.drafts, 0, token_ids) if record.drafts else 0
        if not record.older and 0 < end < len(record.drafts):
            record.older, record.older_position = record.drafts, end
        record.was_right = end > 0

    def _compare(self, record: _Record, drafts: SequenceOf[int], start: int, token_ids: SequenceOf[int]) -> int:
        """Count how the drafts from `start` on came true; how far they did, or 0 if one did not."""
        for position, (draft, token_id) in enumerate(zip(drafts[start:], token_ids, strict=False), start):
            bucket = _BUCKETS[position] or int(record.was_right)
            came_true = draft == token_id
            record.acceptance.count(bucket, came_true)
            self._all.count(bucket, came_true)
            if not came_true:
                return 0
        return min(len(drafts), start + len(token_ids))

    def forget(self, sequence_id: int) -> None:
        self._records.pop(sequence_id, None)

    def timed(self, num_tokens: int, seconds: float) -> None:
        self._costs.correct(num_tokens, seconds)
