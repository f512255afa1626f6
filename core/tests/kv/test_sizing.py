from __future__ import annotations

import random
from types import ModuleType

import pytest

from octavo.errors import CapacityError
from octavo.kv import FullAttentionPolicy, KVCacheManager, capacity_tokens, group_layers, size_groups, with_num_blocks
from octavo.spec.kv import FullAttentionSpec, KVCacheSpec, KVPolicy

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_dim=8, dtype="float32")  # 2048 bytes a block
WIDE = FullAttentionSpec(block_size=16, num_kv_heads=4, head_dim=8, dtype="float32")


def full_policy(spec: KVCacheSpec) -> KVPolicy:
    assert isinstance(spec, FullAttentionSpec)
    return FullAttentionPolicy(spec)


def test_equal_specs_form_groups_in_the_order_of_layers() -> None:
    twin = FullAttentionSpec(block_size=16, num_kv_heads=2, head_dim=8, dtype="float32")
    groups = group_layers({"0": WIDE, "1": FULL, "2": WIDE, "3": twin}, full_policy)
    assert [group.layer_names for group in groups] == [("0", "2"), ("1", "3")]
    assert [group.spec for group in groups] == [WIDE, FULL]
    assert groups[1].block_bytes == 2 * 2048


def test_a_single_group_takes_the_budget() -> None:
    groups = group_layers({"0": FULL, "1": FULL}, full_policy)
    (sized,) = size_groups(groups, 10 * 4096 + 4095, max_model_len=10_000, max_num_seqs=100)
    assert sized.num_blocks == 10
    assert capacity_tokens([sized]) == 9 * 16


def test_no_more_blocks_than_sequences_can_use() -> None:
    groups = group_layers({"0": FULL}, full_policy)
    (sized,) = size_groups(groups, 10**9, max_model_len=100, max_num_seqs=3)
    assert sized.num_blocks == 1 + 3 * 7


def test_too_little_memory_says_how_much_is_needed_and_what_to_change() -> None:
    groups = group_layers({"0": FULL, "1": WIDE}, full_policy)
    least = 2 * 2048 + 2 * 4096
    assert [g.num_blocks for g in size_groups(groups, least, 4096, 8)] == [2, 2]
    with pytest.raises(CapacityError, match=rf"{least:,} bytes.*gets {least - 1:,}; raise cache.memory"):
        size_groups(groups, least - 1, 4096, 8)


@pytest.mark.parametrize("seed", range(30))
def test_shares_stay_within_the_budget_and_waste_little(seed: int, window_policy: ModuleType) -> None:
    rng = random.Random(seed)
    window = window_policy.WindowSpec(block_size=8, window=rng.randint(2, 60), max_step_tokens=32)
    specs = {"a": FULL, "b": window, "c": WIDE}

    def make_policy(spec: KVCacheSpec) -> KVPolicy:
        return full_policy(spec) if isinstance(spec, FullAttentionSpec) else window_policy.WindowPolicy(spec)

    groups = group_layers(specs, make_policy)
    budget, max_model_len = rng.randint(13_000, 10**7), rng.randint(100, 5000)
    sized = size_groups(groups, budget, max_model_len, max_num_seqs=rng.randint(1, 200))
    assert sum(g.num_blocks * g.block_bytes for g in sized) <= budget
    held = [g.policy.max_blocks_held(max_model_len) for g in sized]
    sequences = [(g.num_blocks - 2) / n for g, n in zip(sized, held, strict=True)]
    assert max(sequences) - min(sequences) <= 1, "one group runs out long before another"


@pytest.mark.parametrize("num_blocks", [2, 3, 10])
def test_capacity_is_the_longest_sequence_that_can_be_allocated(num_blocks: int, make_sequence) -> None:
    coarse = FullAttentionSpec(block_size=32, num_kv_heads=1, head_dim=1, dtype="int8")
    groups = with_num_blocks(group_layers({"a": FULL, "b": coarse}, full_policy), num_blocks)
    fitting = []
    for num_tokens in range(1, 400):
        manager = KVCacheManager(groups, 16)
        if manager.allocate(make_sequence(manager, [1]), num_tokens) is not None:
            fitting.append(num_tokens)
    manager = KVCacheManager(groups, 16)
    assert manager.capacity_tokens == max(fitting) == (num_blocks - 1) * 16


def test_a_pure_window_has_no_limit(window_policy: ModuleType) -> None:
    spec = window_policy.WindowSpec(block_size=4, window=8, max_step_tokens=8)
    groups = group_layers({"a": spec}, window_policy.WindowPolicy)
    assert capacity_tokens(with_num_blocks(groups, 6)) == 2**31 - 1
    assert capacity_tokens(with_num_blocks(groups, 5)) == 16
