"""What becomes of a drafter's proposals before anybody verifies them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from octavo.runner.drafting import Drafting, draw_drafts, usable_drafts
from octavo.runner.profiling import least_seconds
from octavo.spec import Draft, DraftRow

VOCAB, STOPS = 10, frozenset({0, 7})


def row(sequence_id: int = 1, room: int = 4, stops: frozenset[int] = STOPS, **fields: Any) -> DraftRow:
    request = SimpleNamespace(stop_token_ids=stops, seed=fields.get("seed", 3))
    sequence = SimpleNamespace(sequence_id=sequence_id, request=request, child_index=fields.get("child", 0))
    sequence.num_tokens = fields.get("num_tokens", 5)
    return DraftRow(sequence, 0, room, None)  # type: ignore[arg-type]


class Chain:
    """Stands for the processors: cuts every proposal to two drafts for the sequences that it refines."""

    def __init__(self, *refined: int) -> None:
        self.refined = refined

    def refines(self, sequence: Any) -> bool:
        return sequence.sequence_id in self.refined

    def refine(self, sequence: Any, drafts: Sequence[int], max_drafts: int, errors: dict[int, str]) -> Sequence[int]:
        return drafts[:2] if self.refines(sequence) else drafts


class Proposing:
    """A drafter that says what it is told."""

    def __init__(self, *proposals: Any) -> None:
        self.proposals = list(proposals)

    def propose(self, rows: Sequence[DraftRow]) -> list[Any]:
        return [self.proposals.pop(0) for _ in rows]

    def release(self, sequence_id: int) -> None: ...


def drafting(*proposals: Any, refined: tuple[int, ...] = ()) -> Drafting:
    return Drafting("mine", Proposing(*proposals), Chain(*refined), VOCAB)  # type: ignore[arg-type]


def probs(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(0)).softmax(-1)


@pytest.mark.parametrize(
    ("drafts", "kept"),
    [
        ([1, 2, 3, 4, 5, 6], (1, 2, 3, 4)),
        ([1, 7, 3], (1,)),
        ([0], ()),
        ([1, -1, 3], (1,)),
        ([1, VOCAB], (1,)),
        (np.array([1, 2]), (1, 2)),
        ((), ()),
    ],
)
def test_drafts_are_cut_where_they_are_of_no_use(drafts: Sequence[int], kept: tuple[int, ...]) -> None:
    assert usable_drafts(drafts, row(), VOCAB) == kept
    assert drafting(drafts).propose([row()], {}) == [kept]


def test_distributions_are_kept_for_what_was_drawn_from_them() -> None:
    q = probs(3)
    maker = drafting(Draft([1, 2, 3], q), Draft([1, 2, 3], q), [4], refined=(2,))
    assert maker.propose([row(1), row(2), row(3)], {}) == [(1, 2, 3), (1, 2), (4,)]
    assert list(maker.probs) == [1], "what a processor has changed is no draw any more"
    without_stops = q.clone()
    without_stops[:, list(STOPS)] = 0.0
    assert torch.allclose(maker.probs[1], without_stops / without_stops.sum(-1, keepdim=True))
    assert torch.equal(drafting_of(q, frozenset()), q)


def drafting_of(q: torch.Tensor, stops: frozenset[int]) -> torch.Tensor:
    maker = drafting(Draft([1, 2, 3], q))
    maker.propose([row(stops=stops)], {})
    return maker.probs[1]


@pytest.mark.parametrize("drafts", [[1, 2, 3, 4], [1, 7, 3, 4], [7, 7, 7, 7], [1, 2, 3, 7, 5, 6]])
def test_the_number_of_drawn_drafts_says_nothing_of_their_values(drafts: list[int]) -> None:
    maker = drafting(Draft(drafts, probs(len(drafts))))
    (kept,) = maker.propose([row()], {})
    assert len(kept) == 4
    assert not STOPS.intersection(kept)
    end = next((i for i, d in enumerate(drafts) if d in STOPS), 4)
    assert list(kept[:end]) == drafts[:end]
    assert len(maker.probs.get(1, ())) == end


def test_distributions_go_with_the_next_proposal_a_preemption_and_the_sequence() -> None:
    draft = Draft([1, 2], probs(2))
    maker = drafting(draft, [1], draft, draft)
    maker.propose([row()], {})
    maker.propose([row()], {})
    assert not maker.probs
    for let_go in (maker.drop, maker.release):
        maker.propose([row()], {})
        assert maker.probs
        let_go(1)
        assert not maker.probs


@pytest.mark.parametrize(
    "wrong", [probs(1), torch.ones(3, VOCAB + 1), torch.ones(VOCAB)], ids=["rows", "width", "rank"]
)
def test_distributions_of_a_wrong_shape_switch_the_drafter_off(wrong: torch.Tensor, caplog) -> None:
    maker = drafting(Draft([1, 2, 3], wrong), [1])
    assert maker.propose([row()], {}) == [()]
    assert maker.propose([row()], {}) == [()]
    assert sum("goes on without drafts" in r.message for r in caplog.records) == 1
    assert not maker.probs


def test_draws_depend_on_the_request_and_the_position_only() -> None:
    q = torch.full((1, VOCAB), 1 / VOCAB)

    def draws(**fields: Any) -> list[int]:
        return [int(draw_drafts([row(**fields)], i, q)) for i in range(40)]

    usual = draws()
    assert draws(sequence_id=9, room=2) == usual
    assert draws(num_tokens=6)[:39] == usual[1:], "the draft of a position is the same from wherever it is drawn"
    assert usual not in (draws(seed=4), draws(child=1))
    batch = draw_drafts([row(seed=4), row()], 7, q.expand(2, -1))
    assert batch[1] == usual[7]


def test_draws_follow_their_distribution() -> None:
    q = probs(1)
    rows = [row(seed=seed) for seed in range(20_000)]
    counts = np.bincount(draw_drafts(rows, 0, q.expand(len(rows), -1)).numpy(), minlength=VOCAB)
    expected = q[0].numpy() * len(rows)
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 5 * 18**0.5


def test_sizes_are_timed_from_the_smallest_on_while_there_is_time() -> None:
    calls: list[int] = []
    assert len(least_seconds(calls.append, [1, 2, 4], 60.0)) == 3
    assert calls == [1, *[1, 2, 4] * 3]
    calls.clear()
    assert len(least_seconds(calls.append, [1, 2, 4], 0.0)) == 1
    assert calls == [1, 1]
