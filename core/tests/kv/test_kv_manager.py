from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from octavo.errors import ConfigError
from octavo.kv import FullAttentionPolicy, KVCacheGroup, KVCacheManager, SequenceBlocks
from octavo.spec.kv import FullAttentionSpec

MakeSequence = Callable[..., SimpleNamespace]


def full_group(block_size: int, num_blocks: int, name: str = "full") -> KVCacheGroup:
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_dim=1, dtype="int8")
    return KVCacheGroup((name,), spec, FullAttentionPolicy(spec), num_blocks)


def window_group(window_policy: ModuleType, block_size: int, window: int, num_blocks: int) -> KVCacheGroup:
    spec = window_policy.WindowSpec(block_size=block_size, window=window, max_step_tokens=64)
    return KVCacheGroup((f"window{window}",), spec, window_policy.WindowPolicy(spec), num_blocks)


def compute(manager: KVCacheManager, sequence: SimpleNamespace) -> int:
    """Allocate and commit a whole sequence at once; returns its cached tokens."""
    hit = manager.find_hit(sequence)
    assert manager.allocate(sequence, len(sequence.token_ids), hit) is not None
    manager.commit(sequence, len(sequence.token_ids))
    return hit.num_tokens


@pytest.mark.parametrize(("num_tokens", "cached"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_a_repeated_prompt_hits_all_but_its_last_block(
    num_tokens: int, cached: int, make_sequence: MakeSequence
) -> None:
    manager = KVCacheManager([full_group(16, 20)], 16)
    prompt = list(range(num_tokens))
    hits = []
    for _ in range(3):
        sequence = make_sequence(manager, prompt)
        hits.append(compute(manager, sequence))
        manager.free(sequence)
    assert hits == [0, cached, cached]
    longer = make_sequence(manager, [*prompt, 99])
    assert manager.find_hit(longer).num_tokens == num_tokens // 16 * 16


def test_salt_adapter_and_a_different_start_do_not_hit(make_sequence: MakeSequence) -> None:
    manager = KVCacheManager([full_group(4, 40)], 4)
    prompt = list(range(17))
    compute(manager, make_sequence(manager, prompt, cache_salt="a"))
    compute(manager, make_sequence(manager, prompt, adapter="a"))
    for fields in ({}, {"cache_salt": "b"}, {"adapter": "b"}, {"adapter": "a", "cache_salt": "a"}):
        assert manager.find_hit(make_sequence(manager, prompt, **fields)).num_tokens == 0
    assert manager.find_hit(make_sequence(manager, prompt, cache_salt="a")).num_tokens == 16
    assert manager.find_hit(make_sequence(manager, [7, *prompt[1:]], cache_salt="a")).num_tokens == 0
    assert manager.find_hit(make_sequence(manager, [*prompt[:9], 7, 7, 7, 7], cache_salt="a")).num_tokens == 8


def test_no_room_changes_nothing_and_shared_blocks_count(make_sequence: MakeSequence) -> None:
    manager = KVCacheManager([full_group(4, 7, "a"), full_group(8, 4, "b")], 4)
    first = make_sequence(manager, list(range(16)))
    compute(manager, first)
    manager.free(first)
    blocker = make_sequence(manager, [50] * 8)
    compute(manager, blocker)
    again = make_sequence(manager, [*range(16), 1])
    hit = manager.find_hit(again)
    assert hit.num_tokens == 16
    # Group b has two free blocks, both part of the hit: nothing is left for token 17.
    assert manager.allocate(again, 17, hit) is None
    assert again.blocks.tables == [[], []]
    manager.check_integrity([blocker])
    manager.free(blocker)
    appended = manager.allocate(again, 17, hit)
    assert appended is not None
    assert [list(ids) for ids in appended] == again.blocks.tables
    assert manager.num_used_blocks == 5 + 3
    manager.check_integrity([again])


def test_tails_are_evicted_before_heads(make_sequence: MakeSequence) -> None:
    manager = KVCacheManager([full_group(4, 5)], 4)
    old = make_sequence(manager, list(range(16)))
    compute(manager, old)
    manager.free(old)
    other = make_sequence(manager, [77] * 5)
    manager.allocate(other, 5)
    assert manager.find_hit(make_sequence(manager, list(range(16)))).num_tokens == 8


def test_only_committed_tokens_are_shared(make_sequence: MakeSequence) -> None:
    manager = KVCacheManager([full_group(4, 20)], 4)
    sequence = make_sequence(manager, list(range(7)))
    manager.allocate(sequence, 12)  # seven tokens and five drafts
    sequence.token_ids += [7, 8]  # one draft was accepted, 8 is the token after it
    manager.commit(sequence, 8)
    assert manager.find_hit(make_sequence(manager, list(range(20)))).num_tokens == 8
    manager.allocate(sequence, 13)
    sequence.token_ids += [9, 10, 11, 12]
    manager.commit(sequence, 12)
    assert manager.find_hit(make_sequence(manager, list(range(20)))).num_tokens == 12
    manager.check_integrity([sequence])


def test_reset_forgets_what_was_and_what_running_sequences_still_register(make_sequence: MakeSequence) -> None:
    manager = KVCacheManager([full_group(4, 20)], 4)
    running, waiting = (make_sequence(manager, list(range(11))) for _ in range(2))
    manager.allocate(running, 11)
    manager.commit(running, 6)
    assert manager.find_hit(waiting).num_tokens == 4
    manager.reset_prefix_cache()
    assert manager.find_hit(waiting).num_tokens == 0
    early = make_sequence(manager, list(range(11)))
    manager.allocate(early, 11)
    manager.reset_prefix_cache()
    for sequence in (running, early):  # their KV was, or may have been, computed before a reset
        manager.commit(sequence, 11)
    assert manager.find_hit(waiting).num_tokens == 0
    fresh = make_sequence(manager, list(range(11)))
    compute(manager, fresh)
    assert manager.find_hit(waiting).num_tokens == 8
    manager.check_integrity([running, early, fresh])


def test_switched_off_nothing_hits(make_sequence: MakeSequence, window_policy: ModuleType) -> None:
    group = window_group(window_policy, 4, 8, 20)
    group.policy.prefix_cacheable = False  # shadows the class attribute of this one policy
    for manager in (
        KVCacheManager([full_group(4, 20)], 4, enable_prefix_caching=False),
        KVCacheManager([full_group(4, 20), group], 4),
    ):
        assert not manager.prefix_caching
        compute(manager, make_sequence(manager, list(range(9))))
        assert manager.find_hit(make_sequence(manager, list(range(9)))).num_tokens == 0


def test_hash_unit_must_divide_block_sizes() -> None:
    with pytest.raises(ConfigError, match=r"6 does not divide the block size 16 of layer full; choose"):
        KVCacheManager([full_group(16, 4)], 6)


def test_a_window_frees_what_it_has_passed(make_sequence: MakeSequence, window_policy: ModuleType) -> None:
    manager = KVCacheManager([window_group(window_policy, 4, 6, 20)], 4)
    sequence = make_sequence(manager, list(range(30)))
    manager.allocate(sequence, 30)
    for num_computed in range(1, 31):
        manager.commit(sequence, num_computed)
        read = {p // 4 for p in range(max(0, num_computed - 5), num_computed)}  # by position num_computed
        table = sequence.blocks.tables[0]
        assert all(table[index] for index in read)
        assert not any(table[: min(read)])
        manager.check_integrity([sequence])
    assert manager.num_used_blocks == 2  # position 30 reads 25 … 29


def usable(groups: list[KVCacheGroup], cached: list[set[int]], num_tokens: int) -> bool:
    """Whether a hit of `num_tokens` finds all the blocks that the next position reads."""
    for group, indices in zip(groups, cached, strict=True):
        if num_tokens % group.spec.block_size:
            return False
        needed = range(group.policy.first_needed(num_tokens), num_tokens // group.spec.block_size)
        if not indices.issuperset(needed):
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_the_hit_of_several_groups_is_the_longest_that_all_can_use(
    seed: int, make_sequence: MakeSequence, window_policy: ModuleType
) -> None:
    rng = random.Random(seed)
    groups = [full_group(rng.choice([4, 8]), 200)]
    groups += [window_group(window_policy, rng.choice([4, 8, 12]), rng.randint(1, 30), 200) for _ in range(2)]
    rng.shuffle(groups)
    manager = KVCacheManager(groups, 4)
    prompt = list(range(rng.randint(1, 120)))
    compute(manager, make_sequence(manager, prompt))  # finds nothing; registers what its windows still hold
    whole = make_sequence(manager, prompt)
    hashes = make_sequence(manager, prompt)
    manager.find_hit(hashes)
    cached: list[set[int]] = []
    for group, pool in zip(groups, manager.pools, strict=True):
        pool.reset_cache()
        stride = group.spec.block_size // 4
        group_hashes = hashes.blocks.hashes[stride - 1 :: stride]
        keep = {i for i in range(len(group_hashes)) if rng.random() < 0.9}
        for index, block_id in zip(sorted(keep), pool.allocate(len(keep)), strict=True):
            pool.register(block_id, group_hashes[index])
        cached.append(keep)
    hit = manager.find_hit(whole)
    assert hit.num_tokens == max(n for n in range(len(prompt)) if usable(groups, cached, n))
    for group, block_ids in zip(groups, hit.block_ids, strict=True):
        assert len(block_ids) * group.spec.block_size == hit.num_tokens
        assert all(block_ids[group.policy.first_needed(hit.num_tokens) :])
    assert isinstance(whole.blocks, SequenceBlocks)
    assert not any(whole.blocks.tables), "looking for a hit has taken blocks"
