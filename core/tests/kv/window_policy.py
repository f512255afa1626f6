"""A toy kind of KV cache, to prove that groups of different policies work together: a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.spec.kv import BlockHash, KVCacheSpec, KVPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(KVCacheSpec):
    """A query at position p reads positions p - window + 1 … p."""

    window: int
    max_step_tokens: int
    """Most tokens, lookahead included, that one step adds to a sequence."""

    @property
    def page_size_bytes(self) -> int:
        return 4 * self.block_size


class WindowPolicy(KVPolicy):
    rewindable = True
    prefix_cacheable = True

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.alignment = spec.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.spec.block_size)

    def max_blocks_held(self, num_tokens: int) -> int:
        span = self.spec.window - 1 + self.spec.max_step_tokens
        return min(self.blocks_for(num_tokens), self.blocks_for(span) + 1)

    def first_needed(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.spec.window + 1) // self.spec.block_size

    def longest_hit(
        self, block_hashes: Sequence[BlockHash], lookup: Callable[[BlockHash], int | None], max_blocks: int
    ) -> list[int | None]:
        for length in range(min(max_blocks, len(block_hashes)), 0, -1):
            first = self.first_needed(length * self.spec.block_size)
            tail = [lookup(block_hash) for block_hash in block_hashes[first:length]]
            if None not in tail:
                return [None] * first + tail
        return []

    def eviction_key(self, block_index: int) -> int:
        return block_index
