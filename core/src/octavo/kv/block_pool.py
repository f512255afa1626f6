"""The blocks of one KV cache group: which are free, how often each is used, which hold a known prefix.

Owns: the free list, reference counts and the map from block hash to block. Must never know: sequences, policies,
what a block stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.snapshot import BlockState
from octavo.spec.kv import BlockHash

NULL_BLOCK = 0
"""Stands in block tables for a block that is not needed. Never handed out, never counted."""


class BlockPool:
    """Blocks 1 … `num_blocks` - 1. Every operation is O(1) for each block that it touches.

    The free list is a ring of links kept in two int lists; the null block, which is never free itself, is the
    ring's head. Its order is the order of reuse: blocks without a hash first (they are worth nothing), then cached
    ones from the least to the most recently released. A cached block keeps its hash while it is free; it loses it
    when it is handed out again.

    A hash belongs to at most one block. When two sequences compute the same prefix at the same time, the block
    that is registered first stays the cached one and the other remains an ordinary block without a hash: block
    tables are then append-only, and a runner never has to hear that an id changed.
    """

    __slots__ = ("_cached", "_hashes", "_next", "_prev", "num_blocks", "num_free", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self.num_blocks = num_blocks
        """The null block included."""
        self.num_free = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._cached: dict[BlockHash, int] = {}
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    def lookup(self, block_hash: BlockHash) -> int | None:
        """The block that holds this prefix, free or in use."""
        return self._cached.get(block_hash)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each; cached ones among them are evicted. The caller checks `num_free`."""
        assert count <= self.num_free, f"asked for {count} blocks, {self.num_free} are free"
        block_ids = []
        for _ in range(count):
            block_id = self._next[NULL_BLOCK]
            self._unlink(block_id)
            self._forget(block_id)
            self.ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def touch(self, block_id: int) -> None:
        """One more reference to a cached block; takes it out of the free list if it is there."""
        assert self._hashes[block_id] is not None, f"block {block_id} is not cached"
        if self.ref_counts[block_id] == 0:
            self._unlink(block_id)
        self.ref_counts[block_id] += 1

    def release(self, block_id: int) -> None:
        """One reference less; the last one puts the block into the free list. Released first, evicted first."""
        count = self.ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} is not in use"
        self.ref_counts[block_id] = count
        if count == 0:
            before = NULL_BLOCK if self._hashes[block_id] is None else self._prev[NULL_BLOCK]
            self._link(block_id, before)

    def register(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a full block in use findable. Does nothing if another block holds this prefix already."""
        assert self.ref_counts[block_id] > 0, f"block {block_id} is not in use"
        if block_hash in self._cached:
            return
        assert self._hashes[block_id] is None, f"block {block_id} has another hash"
        self._hashes[block_id] = block_hash
        self._cached[block_hash] = block_id

    def reset_cache(self) -> None:
        """Forget every hash; blocks in use stay in use."""
        self._cached.clear()
        self._hashes = [None] * self.num_blocks

    def states(self) -> bytes:
        """A `BlockState` for each usable block."""
        free, cached, used, shared = BlockState
        pairs = zip(self.ref_counts[1:], self._hashes[1:], strict=True)
        return bytes(
            (free if block_hash is None else cached) if count == 0 else used if count == 1 else shared
            for count, block_hash in pairs
        )

    def check_integrity(self, ref_counts: Sequence[int]) -> None:
        """Recompute everything; `ref_counts` are those that the block tables say. Raises `AssertionError`."""
        assert list(ref_counts) == self.ref_counts, "reference counts differ from the block tables"
        assert self.ref_counts[NULL_BLOCK] == 0, "the null block is in use"
        free: list[int] = []
        previous, block_id = NULL_BLOCK, self._next[NULL_BLOCK]
        while block_id != NULL_BLOCK:
            assert self._prev[block_id] == previous, f"free list is torn at block {block_id}"
            assert len(free) < self.num_blocks, "free list has a loop"
            free.append(block_id)
            previous, block_id = block_id, self._next[block_id]
        assert self._prev[NULL_BLOCK] == previous, "free list is torn at its end"
        unused = [i for i in range(1, self.num_blocks) if self.ref_counts[i] == 0]
        assert sorted(free) == unused, "free list differs from the blocks without references"
        assert self.num_free == len(free), f"counted {self.num_free} free blocks, there are {len(free)}"
        cached = {h: i for i, h in enumerate(self._hashes) if h is not None}
        assert cached == self._cached, "hash map differs from the blocks' hashes"
        assert self._hashes[NULL_BLOCK] is None, "the null block has a hash"

    def _forget(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._cached[block_hash]
            self._hashes[block_id] = None

    def _link(self, block_id: int, before: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block_id
        self._prev[block_id], self._next[block_id] = before, after
        self.num_free += 1

    def _unlink(self, block_id: int) -> None:
        before, after = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[after] = after, before
        self._prev[block_id] = self._next[block_id] = -1
        self.num_free -= 1
