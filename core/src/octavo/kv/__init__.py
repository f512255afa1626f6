"""Blocks, block tables, prefix hashes and KV cache groups: bookkeeping in plain numbers, without torch."""

from octavo.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.kv.manager import KVCacheManager, KVSequence, PrefixHit, SequenceBlocks
from octavo.kv.policies import FullAttentionPolicy
from octavo.kv.sizing import KVCacheGroup, capacity_tokens, group_layers, size_groups, with_num_blocks

__all__ = [
    "NULL_BLOCK",
    "BlockPool",
    "FullAttentionPolicy",
    "KVCacheGroup",
    "KVCacheManager",
    "KVSequence",
    "PrefixHit",
    "SequenceBlocks",
    "capacity_tokens",
    "group_layers",
    "size_groups",
    "with_num_blocks",
]
