"""Outputs of earlier requests: what is kept, for whom, for how long, and how much memory it takes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.spec import DraftRow, SequenceView
from octavo_suffix.drafter import SuffixDrafter
from octavo_suffix.outputs import OutputStore
from octavo_suffix.plugin import SuffixOptions


def new_drafter(**options: Any) -> SuffixDrafter:
    target: Any = SimpleNamespace(options=SuffixOptions(**options))
    return SuffixDrafter(target)


def sequence(sequence_id: int, prompt: list[int], output: list[int], salt: str | None = None) -> SequenceView:
    tokens = np.array(prompt + output, dtype=np.int32)
    view: Any = SimpleNamespace(
        sequence_id=sequence_id,
        request=SimpleNamespace(cache_salt=salt),
        child_index=0,
        num_tokens=len(tokens),
        token_ids=tokens,
        prompt_token_ids=tokens[: len(prompt)],
        output_token_ids=tokens[len(prompt) :],
    )
    return view


def draft(drafter: SuffixDrafter, view: SequenceView, max_drafts: int = 100) -> list[int]:
    return list(drafter.propose([DraftRow(view, 0, max_drafts, None)])[0])


def run(
    drafter: SuffixDrafter, sequence_id: int, prompt: list[int], output: list[int], salt: str | None = None
) -> None:
    """A whole life: seen once, then over."""
    draft(drafter, sequence(sequence_id, prompt, output, salt))
    drafter.release(sequence_id)


def test_the_second_run_drafts_the_first_one_s_output_from_its_first_token_on() -> None:
    drafter = new_drafter(match_lens=(4,), factor=5.0)
    prompt, output = list(range(100, 140)), list(range(200, 230))
    run(drafter, 0, prompt, output)
    for position in (1, 5, 29):
        assert draft(drafter, sequence(1, prompt, output[:position])) == output[position : position + 20]
    assert draft(drafter, sequence(1, prompt, [*output, 5])) == []


def test_prompts_are_not_shared() -> None:
    drafter = new_drafter(match_lens=(2,))
    prompt = list(range(100, 140))
    run(drafter, 0, prompt, [7, 8, 9])
    assert draft(drafter, sequence(1, prompt[:20], [])) == []
    assert draft(drafter, sequence(2, prompt[-2:], [])) == [7, 8, 9]  # but outputs are found by what came before


def test_an_unseen_or_released_sequence_may_be_released() -> None:
    drafter = new_drafter()
    drafter.release(3)
    run(drafter, 0, [1] * 9, [2] * 9)
    num_tokens = drafter._outputs.num_tokens
    drafter.release(0)
    assert drafter._outputs.num_tokens == num_tokens
    assert not drafter._live


def test_salts_never_meet() -> None:
    """The same context everywhere: each salt finds its own latest output, also after owners' numbers are used again."""
    rng = random.Random(1)
    drafter = new_drafter(match_lens=(3,), max_cached_tokens=50 * (3 + 4 + 1), min_probability=0.0)
    context, order = [1, 2, 3], []
    for i in range(400):
        order.append(rng.choice([None, "", "a", "b", f"once-{i}", f"once-{i}"]))
        run(drafter, i, context, [1000 + i] * 4, order[-1])
        latest = {salt: 1000 + max(0, i - 49) + k for k, salt in enumerate(order[-50:])}
        for salt in (rng.choice(order), None, "a", "never"):
            expected = [latest[salt]] if salt in latest else []
            assert draft(drafter, sequence(10_000, context, [], salt), 1) == expected
            drafter._live.clear()
    assert max(drafter._outputs._owners.values()) <= 50


def test_whole_outputs_go_first_in_first_out() -> None:
    drafter = new_drafter(match_lens=(3,), max_cached_tokens=10 * (3 + 20 + 1), factor=2.0, min_probability=0.0)
    for i in range(35):
        base = 1000 * (i + 1)
        run(drafter, i, [1, 2, base], list(range(base + 1, base + 21)))
        for j in range(i + 1):
            first = 1000 * (j + 1)
            drafts = draft(drafter, sequence(10_000 + j, [1, 2, first], []))
            assert drafts == (list(range(first + 1, first + 7)) if j > i - 10 else []), (i, j)
        drafter._live.clear()


def test_an_output_beyond_the_bound_keeps_its_end() -> None:
    drafter = new_drafter(match_lens=(2,), max_cached_tokens=50, factor=3.0)
    run(drafter, 0, [1, 2], list(range(1000, 1200)))
    assert draft(drafter, sequence(1, [1160, 1161], [])) == list(range(1162, 1168))
    assert draft(drafter, sequence(2, [1149, 1150], [])) == []
    assert draft(drafter, sequence(3, [1197, 1198], [])) == [1199]


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 10, 1000])
def test_the_bound_holds_for_tokens_words_and_bytes(max_tokens: int) -> None:
    rng = random.Random(max_tokens)
    store = OutputStore((3, 6, 12), max_tokens)
    empty = store.num_bytes
    for i in range(600):
        output = np.array(rng.choices(range(50), k=rng.choice([0, 1, 5, 90, 400])), dtype=np.int32)
        lead = np.array(rng.choices(range(50), k=rng.choice([0, 3, 12])), dtype=np.int32)
        store.add(rng.choice([None, "a", str(i)]), lead, output)
        assert store.num_tokens == sum(num_words for _, num_words in store._outputs) <= max_tokens
        assert store._index.num_positions <= 1 + max_tokens + max_tokens // 4
        # 8 bytes a word and 4 for each match length, arrays grown by at most an eighth
        assert store.num_bytes - empty <= (8 + 3 * 4) * (max_tokens + max_tokens // 4) * 9 / 8 + 100
    assert store.num_tokens > max_tokens // 2 or max_tokens < 3
    assert len(store._owners) == len(store._num_outputs) == len({salt for salt, _ in store._outputs})


def test_a_live_sequence_takes_memory_in_proportion_to_its_tokens_and_none_when_it_is_over() -> None:
    drafter = new_drafter(max_cached_tokens=0)
    before = drafter.num_bytes
    rng = random.Random(0)
    tokens = rng.choices(range(50_000), k=20_000)
    for end in (1000, 5000, 20_000):
        draft(drafter, sequence(0, tokens[:1000], tokens[1000:end]))
        assert drafter.num_bytes - before <= 60 * end
    drafter.release(0)
    assert drafter.num_bytes == before
