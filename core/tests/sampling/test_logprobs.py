"""Log probabilities: values, ranks and top lists against double precision."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.sampling.logprobs import gather_logprobs


def naive(row: list[float], token_id: int) -> tuple[float, int]:
    total = math.log(math.fsum(math.exp(x - max(row)) for x in row)) + max(row)
    return row[token_id] - total, 1 + sum(x > row[token_id] for x in row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_ranks_and_lists(dtype: torch.dtype) -> None:
    logits = (torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    token_ids = [0, 39, 7, int(logits[3].argmax()), int(logits[4].argmin()), 5]
    num_top = [0, 1, 3, 5, 40, 0]
    found = gather_logprobs(logits, token_ids, num_top)
    for row, token_id, count, entry in zip(logits.float().tolist(), token_ids, num_top, found, strict=True):
        logprob, rank = naive(row, token_id)
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(logprob, abs=1e-5)
        assert entry.rank == rank
        best = sorted(((naive(row, i)[0], i) for i in range(40)), reverse=True)[:count]
        assert [p for _, p in entry.top] == pytest.approx([p for p, _ in best], abs=1e-5)
        if dtype is torch.float32:  # without ties
            assert [i for i, _ in entry.top] == [i for _, i in best]
    assert found[3].rank == 1
    assert found[4].rank == 40


def test_equal_logits_share_the_better_rank() -> None:
    (entry,) = gather_logprobs(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [2], [2])
    assert entry.rank == 1
    assert {i for i, _ in entry.top} == {1, 2}
    assert gather_logprobs(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [3], [0])[0].rank == 3


def test_lists_are_never_longer_than_the_vocabulary() -> None:
    (entry,) = gather_logprobs(torch.zeros(1, 4), [1], [128])
    assert len(entry.top) == 4
    assert math.fsum(math.exp(p) for _, p in entry.top) == pytest.approx(1)


def test_none_of_the_likeliest_still_gives_the_sampled_one() -> None:
    entries = gather_logprobs(torch.zeros(2, 4), [1, 3], [0, 0])
    assert [e.top for e in entries] == [(), ()]
    assert [e.logprob for e in entries] == pytest.approx([-math.log(4)] * 2)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(2))
    together = gather_logprobs(logits, [1, 2, 3, 4, 5], [0, 5, 1, 0, 2])
    for i in range(5):
        alone = gather_logprobs(logits[i : i + 1], [i + 1], [[0, 5, 1, 0, 2][i]])
        assert alone == [together[i]]
