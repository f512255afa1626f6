"""The policy that core brings along: full attention keeps every block.

Owns: `FullAttentionPolicy`. Must never know: pools, sequences, other kinds of cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.spec.kv import BlockHash, FullAttentionSpec, KVPolicy


class FullAttentionPolicy(KVPolicy):
    """Every position reads all earlier ones: each block is needed until the end."""

    rewindable = True
    prefix_cacheable = True

    def __init__(self, spec: FullAttentionSpec, max_step_tokens: int = 1) -> None:
        self.block_size = spec.block_size
        self.alignment = spec.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def max_blocks_held(self, num_tokens: int) -> int:
        return self.blocks_for(num_tokens)

    def first_needed(self, num_computed_tokens: int) -> int:
        return 0

    def longest_hit(
        self, block_hashes: Sequence[BlockHash], lookup: Callable[[BlockHash], int | None], max_blocks: int
    ) -> list[int | None]:
        hit: list[int | None] = []
        for block_hash in block_hashes[:max_blocks]:
            block_id = lookup(block_hash)
            if block_id is None:
                break
            hit.append(block_id)
        return hit

    def eviction_key(self, block_index: int) -> int:
        return block_index
