"""Block tables of sequences: what to allocate, share, register and free, as each group's policy says.

Owns: the pools and the sequences' `SequenceBlocks`. Must never know: queues, budgets, who is preempted. It answers
"no room" and never calls up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.errors import ConfigError
from octavo.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.kv.hashing import extend_hashes, root_hash
from octavo.kv.sizing import KVCacheGroup, capacity_tokens
from octavo.request import Request
from octavo.snapshot import BlockMap
from octavo.spec.kv import BlockHash
from octavo.step import BlockIds


class SequenceBlocks:
    """What the manager remembers about one sequence. Others may read `tables`; only the manager writes."""

    __slots__ = ("hashes", "num_freed", "num_registered", "root", "tables")

    def __init__(self, num_groups: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Block ids by group; `NULL_BLOCK` where a block is not needed (any more)."""
        self.num_registered = [0] * num_groups
        """Leading blocks of each table whose hashes are known to the pool."""
        self.num_freed = [0] * num_groups
        """Leading blocks of each table that are not needed any more."""
        self.hashes: list[BlockHash] = []
        self.root: BlockHash = b""


class KVSequence(Protocol):
    """What the manager looks at of a sequence."""

    request: Request
    token_ids: list[int]
    """Committed tokens only: prompt and output, without drafts."""
    blocks: SequenceBlocks


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks that a sequence can start from."""

    num_tokens: int
    block_ids: BlockIds


class KVCacheManager:
    """The blocks of all KV cache groups; one pool for each group.

    `hash_block_size` is the unit of block hashes, `cache.block_size`; a group whose blocks are k times as long takes
    every k-th hash. Raises `ConfigError` if it does not divide a group's block size.
    """

    def __init__(
        self, groups: Sequence[KVCacheGroup], hash_block_size: int, enable_prefix_caching: bool = True
    ) -> None:
        self.groups = tuple(groups)
        self.hash_block_size = hash_block_size
        self.pools = tuple(BlockPool(group.num_blocks) for group in groups)
        for group in groups:
            if group.spec.block_size % hash_block_size:
                raise ConfigError(
                    f"cache.block_size {hash_block_size} does not divide the block size {group.spec.block_size} "
                    f"of layer {group.layer_names[0]}; choose a divisor of it"
                )
        self.prefix_caching = enable_prefix_caching and all(group.policy.prefix_cacheable for group in groups)
        """Whether prefixes are shared at all: it takes every group to skip a token."""
        self.rewindable = all(group.policy.rewindable for group in groups)
        """Whether drafts can be rejected: it takes every group to forget a token."""
        self.capacity_tokens = capacity_tokens(self.groups)
        """Length of the longest sequence that fits when it is alone."""
        self._hit_unit = math.lcm(1, *(math.lcm(g.spec.block_size, g.policy.alignment) for g in groups))
        self._blocks_for = tuple(group.policy.blocks_for for group in groups)
        self._commit_facts = tuple((g.spec.block_size, g.policy.first_needed) for g in groups)
        self._no_blocks: BlockIds = tuple(() for _ in groups)
        self._generation = 0
        self._root = root_hash(0)

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups that can be used."""
        return sum(pool.num_usable for pool in self.pools)

    @property
    def num_used_blocks(self) -> int:
        return sum(pool.num_usable - pool.num_free for pool in self.pools)

    def new_blocks(self) -> SequenceBlocks:
        """The empty tables of a new sequence."""
        return SequenceBlocks(len(self.groups))

    def find_hit(self, sequence: KVSequence) -> PrefixHit:
        """The longest prefix that every group has cached; at least one token is left to compute.

        Changes no block. Each group may only shorten what the others offer, until all agree.
        """
        blocks = sequence.blocks
        assert not any(blocks.tables), "a hit is for a sequence without blocks"
        if not self.prefix_caching or not self.groups:
            return PrefixHit(0, self._no_blocks)
        if blocks.root != self._root:  # hashes of before a reset would find blocks that are out of date
            blocks.root = self._root
            blocks.hashes.clear()
        unit, hit_unit = self.hash_block_size, self._hit_unit
        extend_hashes(blocks.hashes, blocks.root, sequence.request, sequence.token_ids, unit)
        limit = (len(sequence.token_ids) - 1) // hit_unit * hit_unit
        hits: list[list[int | None]] = [[] for _ in self.groups]
        group_id = num_agreed = 0
        while num_agreed < len(self.groups):
            group = self.groups[group_id]
            block_size = group.spec.block_size
            stride = block_size // unit
            hashes = blocks.hashes[stride - 1 :: stride] if stride > 1 else blocks.hashes
            found = group.policy.longest_hit(hashes, self.pools[group_id].lookup, limit // block_size)
            length = len(found) * block_size
            if length < limit:
                limit, num_agreed = length // hit_unit * hit_unit, 0
            if length == limit:
                hits[group_id] = found
                num_agreed += 1
            group_id = (group_id + 1) % len(self.groups)
        return PrefixHit(limit, tuple(tuple(NULL_BLOCK if i is None else i for i in hit) for hit in hits))

    def next_hash(self, sequence: KVSequence, hit: PrefixHit) -> BlockHash | None:
        """Hash of the block that must be cached for a longer hit than `hit`, which `find_hit` has just found.

        None if there can be no longer one.
        """
        end = hit.num_tokens + self._hit_unit
        if end >= len(sequence.token_ids) or not sequence.blocks.hashes:
            return None
        return sequence.blocks.hashes[end // self.hash_block_size - 1]

    def filled_hashes(self, sequence: KVSequence, start: int, stop: int) -> Sequence[BlockHash]:
        """Hashes of the blocks of `hash_block_size` tokens that computing tokens `start` to `stop` fills.

        These are committed tokens, never drafts. Empty if prefixes are not shared.
        """
        if not self.prefix_caching:
            return ()
        blocks, unit = sequence.blocks, self.hash_block_size
        extend_hashes(blocks.hashes, blocks.root, sequence.request, sequence.token_ids, unit)
        return blocks.hashes[start // unit : stop // unit]

    def allocate(self, sequence: KVSequence, num_tokens: int, hit: PrefixHit | None = None) -> BlockIds | None:
        """Lengthen the block tables to hold `num_tokens` tokens, starting with the blocks of `hit`.

        Returns the appended block ids by group, or None, with nothing changed, if there is no room.
        """
        tables = sequence.blocks.tables
        if hit is None:  # in most steps the last block still has room: be quick about it
            for blocks_for, table in zip(self._blocks_for, tables, strict=True):
                if blocks_for(num_tokens) > len(table):
                    break
            else:
                return self._no_blocks
        if not sequence.blocks.root:  # it never looked for a hit
            sequence.blocks.root = self._root
        counts = []
        for group_id, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            shared = hit.block_ids[group_id] if hit is not None else ()
            count = group.policy.blocks_for(num_tokens) - len(tables[group_id]) - len(shared)
            # A shared block that nobody uses leaves the free list too.
            revived = sum(1 for i in shared if i != NULL_BLOCK and pool.ref_counts[i] == 0)
            if max(count, 0) + revived > pool.num_free:
                return None
            counts.append(count)
        if hit is not None:
            self._share(sequence.blocks, hit)
        appended = []
        for group_id, (pool, count) in enumerate(zip(self.pools, counts, strict=True)):
            new = pool.allocate(count) if count > 0 else []
            tables[group_id] += new
            appended.append(tuple(new) if hit is None else (*hit.block_ids[group_id], *new))
        return tuple(appended)

    def commit(self, sequence: KVSequence, num_computed_tokens: int) -> None:
        """The KV of the first `num_computed_tokens` committed tokens is valid: share its full blocks, free the rest.

        `token_ids` must hold these tokens and no draft that was not accepted.
        """
        blocks = sequence.blocks
        for group_id, (block_size, first_needed) in enumerate(self._commit_facts):
            num_full = num_computed_tokens // block_size
            if num_full > blocks.num_registered[group_id] and self.prefix_caching:
                self._register(sequence, group_id, num_full)
            first = first_needed(num_computed_tokens)
            if first > blocks.num_freed[group_id]:
                self._release(blocks, group_id, blocks.num_freed[group_id], first)
                blocks.num_freed[group_id] = first

    def free(self, sequence: KVSequence) -> None:
        """Give all blocks back. Their contents stay findable until they are used for something else."""
        blocks = sequence.blocks
        for group_id, table in enumerate(blocks.tables):
            self._release(blocks, group_id, 0, len(table))
            table.clear()
            blocks.num_registered[group_id] = blocks.num_freed[group_id] = 0

    def reset_prefix_cache(self) -> None:
        """Nothing computed so far is found again, not even what running sequences register from now on."""
        for pool in self.pools:
            pool.reset_cache()
        self._generation += 1
        self._root = root_hash(self._generation)

    def snapshot(self) -> tuple[BlockMap, ...]:
        """What every block is used for, by KV cache group."""
        pairs = zip(self.groups, self.pools, strict=True)
        return tuple(BlockMap(group.spec.block_size, pool.states()) for group, pool in pairs)

    def check_integrity(self, sequences: Iterable[KVSequence]) -> None:
        """Recompute all bookkeeping from the tables of all `sequences`. Raises `AssertionError`. For tests."""
        sequences = list(sequences)
        for group_id, pool in enumerate(self.pools):
            ref_counts = [0] * pool.num_blocks
            for sequence in sequences:
                blocks = sequence.blocks
                used = [i for i in blocks.tables[group_id] if i != NULL_BLOCK]
                assert len(set(used)) == len(used), "a sequence uses a block twice"
                assert blocks.num_registered[group_id] <= len(blocks.tables[group_id]), "registered beyond the table"
                assert not any(blocks.tables[group_id][: blocks.num_freed[group_id]]), "a freed block is in a table"
                for i in used:
                    ref_counts[i] += 1
            pool.check_integrity(ref_counts)

    def _share(self, blocks: SequenceBlocks, hit: PrefixHit) -> None:
        for group_id, (pool, block_ids) in enumerate(zip(self.pools, hit.block_ids, strict=True)):
            for i in block_ids:
                if i != NULL_BLOCK:
                    pool.touch(i)
            blocks.tables[group_id].extend(block_ids)
            blocks.num_registered[group_id] = len(block_ids)

    def _register(self, sequence: KVSequence, group_id: int, num_full: int) -> None:
        blocks, pool, unit = sequence.blocks, self.pools[group_id], self.hash_block_size
        extend_hashes(blocks.hashes, blocks.root, sequence.request, sequence.token_ids, unit)
        stride = self.groups[group_id].spec.block_size // unit
        for index in range(blocks.num_registered[group_id], num_full):
            block_id = blocks.tables[group_id][index]
            if block_id != NULL_BLOCK:
                pool.register(block_id, blocks.hashes[(index + 1) * stride - 1])
        blocks.num_registered[group_id] = num_full

    def _release(self, blocks: SequenceBlocks, group_id: int, start: int, stop: int) -> None:
        table, pool = blocks.tables[group_id], self.pools[group_id]
        eviction_key = self.groups[group_id].policy.eviction_key
        for index in sorted(range(start, min(stop, len(table))), key=eviction_key, reverse=True):
            if table[index] != NULL_BLOCK:
                pool.release(table[index])
                table[index] = NULL_BLOCK
