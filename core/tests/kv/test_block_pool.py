from __future__ import annotations

import random

import pytest

from octavo.kv import NULL_BLOCK, BlockPool


class NaivePool:
    """The same pool with lists that are searched."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.hash_of: dict[int, bytes] = {}

    def find(self, block_hash: bytes) -> int | None:
        return next((i for i, h in self.hash_of.items() if h == block_hash), None)

    def allocate(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for i in taken:
            self.hash_of.pop(i, None)
            self.refs[i] = 1
        return taken

    def touch(self, i: int) -> None:
        if self.refs[i] == 0:
            self.free.remove(i)
        self.refs[i] += 1

    def release(self, i: int) -> None:
        self.refs[i] -= 1
        if self.refs[i] == 0:
            self.free.insert(len(self.free) if i in self.hash_of else 0, i)

    def register(self, i: int, block_hash: bytes) -> None:
        if self.find(block_hash) is None:
            self.hash_of[i] = block_hash


@pytest.mark.parametrize("seed", range(40))
def test_pool_does_what_a_naive_pool_does(seed: int) -> None:
    rng = random.Random(seed)
    num_blocks = rng.randint(2, 12)
    pool, naive = BlockPool(num_blocks), NaivePool(num_blocks)
    held: list[int] = []  # one entry for each reference
    hashes = [bytes([i]) for i in range(8)]
    for _ in range(300):
        action = rng.choice(["allocate", "touch", "release", "release", "register", "register", "reset"])
        if action == "allocate":
            count = rng.randint(0, pool.num_free)
            taken = pool.allocate(count)
            assert taken == naive.allocate(count)
            held += taken
        elif action == "touch":
            found = pool.lookup(rng.choice(hashes))
            if found is not None:
                pool.touch(found)
                naive.touch(found)
                held.append(found)
        elif action == "release" and held:
            block_id = held.pop(rng.randrange(len(held)))
            pool.release(block_id)
            naive.release(block_id)
        elif action == "register" and held:
            block_id, block_hash = rng.choice(held), rng.choice(hashes)
            if block_id not in naive.hash_of:
                pool.register(block_id, block_hash)
                naive.register(block_id, block_hash)
        elif action == "reset" and rng.random() < 0.05:
            pool.reset_cache()
            naive.hash_of.clear()
        pool.check_integrity(naive.refs)
        assert pool.num_free == len(naive.free)
        assert [pool.lookup(h) for h in hashes] == [naive.find(h) for h in hashes]
        assert NULL_BLOCK not in held


def test_blocks_without_a_hash_are_reused_before_cached_ones_and_those_by_age() -> None:
    pool = BlockPool(5)
    a, b, c, d = pool.allocate(4)
    pool.register(a, b"a")
    pool.register(c, b"c")
    for block_id in (c, d, a, b):
        pool.release(block_id)
    assert pool.allocate(4) == [b, d, c, a]


def test_a_block_computed_twice_is_cached_once() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.register(first, b"same")
    pool.register(second, b"same")
    pool.release(first)
    pool.release(second)
    assert pool.lookup(b"same") == first
    assert pool.allocate(1) == [second]
    assert pool.lookup(b"same") == first


def test_misuse_is_caught() -> None:
    pool = BlockPool(3)
    (block_id,) = pool.allocate(1)
    with pytest.raises(AssertionError, match="not cached"):
        pool.touch(block_id)
    pool.release(block_id)
    with pytest.raises(AssertionError, match="not in use"):
        pool.release(block_id)
    with pytest.raises(AssertionError, match="asked for 3"):
        pool.allocate(3)


@pytest.mark.parametrize("damage", ["link", "count", "hash", "reference"])
def test_check_integrity_finds_damage(damage: str) -> None:
    pool = BlockPool(6)
    used = pool.allocate(2)
    pool.register(used[0], b"x")
    refs = list(pool.ref_counts)
    pool.check_integrity(refs)
    if damage == "link":
        pool._prev[5] = 2
    elif damage == "count":
        pool.num_free += 1
    elif damage == "hash":
        pool._hashes[used[0]] = b"y"
    else:
        refs[used[1]] += 1
    with pytest.raises(AssertionError):
        pool.check_integrity(refs)
