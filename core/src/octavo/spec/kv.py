"""Contract of KV caches: what a layer stores for each block (spec), and which blocks it needs (policy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
BlockHash = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """How one layer's KV cache is shaped. Layers of equal specs form one KV cache group.

    A plugin adds kinds of cache by subclassing this and registering a `KVPolicy` for the subclass.
    """

    block_size: int
    """Tokens in a block."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes that one layer stores for one block."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Keys and values of every position are kept."""

    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def page_size_bytes(self) -> int:
        return 2 * self.block_size * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


class KVPolicy(Protocol):
    """Which blocks a KV cache group needs and keeps. Pure functions of counts: no state, no torch.

    Indices of blocks count from the start of the sequence. One instance serves one group.
    """

    rewindable: bool
    """Whether the cache of rejected drafts can simply be overwritten; if not, the state is kept in checkpoints."""
    prefix_cacheable: bool
    """Whether blocks may be shared through prefix hashes."""
    alignment: int
    """Hits are a multiple of this many tokens."""

    def blocks_for(self, num_tokens: int) -> int:
        """Length of the block table of a sequence of `num_tokens` tokens (null blocks included)."""
        ...

    def max_blocks_held(self, num_tokens: int) -> int:
        """Most blocks, null ones not counted, that a sequence of up to `num_tokens` tokens holds at a time."""
        ...

    def first_needed(self, num_computed_tokens: int) -> int:
        """Index of the first block that positions from `num_computed_tokens` on still read."""
        ...

    def longest_hit(
        self, block_hashes: Sequence[BlockHash], lookup: Callable[[BlockHash], int | None], max_blocks: int
    ) -> list[int | None]:
        """Cached block ids of the longest usable prefix, at most `max_blocks` long.

        `lookup` gives the id of a cached block or None. An entry None of the result is a block that the policy
        does not need (it becomes the null block). The length of the list is the hit in blocks.
        """
        ...

    def eviction_key(self, block_index: int) -> int:
        """Among blocks freed at the same moment, those with the higher key are evicted first."""
        ...
