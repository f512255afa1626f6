"""KV cache groups, and how many blocks each gets out of a number of bytes.

Owns: `KVCacheGroup`, grouping, shares of memory, capacity in tokens. Must never know: where the bytes come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.errors import CapacityError
from octavo.spec.kv import KVCacheSpec, KVPolicy

UNLIMITED_TOKENS = 2**31 - 1
"""Capacity of a cache whose need does not grow with the sequence."""


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers of equal specs. They share one block table; block ids are local to the group."""

    layer_names: tuple[str, ...]
    spec: KVCacheSpec
    policy: KVPolicy
    num_blocks: int = 1
    """The null block included, so 1 is a group without memory."""

    @property
    def block_bytes(self) -> int:
        """Bytes that all layers of the group store for one block."""
        return self.spec.page_size_bytes * len(self.layer_names)


def group_layers(
    specs: Mapping[str, KVCacheSpec], make_policy: Callable[[KVCacheSpec], KVPolicy]
) -> tuple[KVCacheGroup, ...]:
    """One group for each distinct spec, in the order of their first layers; still without blocks."""
    layers: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        layers.setdefault(spec, []).append(name)
    return tuple(KVCacheGroup(tuple(names), spec, make_policy(spec)) for spec, names in layers.items())


def with_num_blocks(groups: Sequence[KVCacheGroup], num_blocks: int) -> tuple[KVCacheGroup, ...]:
    """The groups with exactly `num_blocks` blocks each."""
    return tuple(dataclasses.replace(group, num_blocks=num_blocks) for group in groups)


def size_groups(
    groups: Sequence[KVCacheGroup], budget_bytes: int, max_model_len: int, max_num_seqs: int
) -> tuple[KVCacheGroup, ...]:
    """Share `budget_bytes` out in proportion to what a sequence of `max_model_len` tokens holds in each group.

    Each group has the null block and at least one more, and no more than `max_num_seqs` such sequences can use.
    Raises `CapacityError` if the budget does not reach for that.
    """
    least = sum(2 * group.block_bytes for group in groups)
    if budget_bytes < least:
        raise CapacityError(
            f"the KV cache needs at least {least:,} bytes (two blocks of {len(groups)} groups with "
            f"{sum(len(group.layer_names) for group in groups)} layers) but gets {budget_bytes:,}; raise cache.memory "
            f"or cache.memory_fraction, or lower cache.block_size"
        )
    held = [group.policy.max_blocks_held(max_model_len) for group in groups]
    sequence_bytes = sum(n * group.block_bytes for n, group in zip(held, groups, strict=True))
    sized = []
    for n, group in zip(held, groups, strict=True):
        share = 2 + (budget_bytes - least) * n // max(sequence_bytes, 1)
        sized.append(dataclasses.replace(group, num_blocks=max(2, min(share, 1 + max_num_seqs * n))))
    return tuple(sized)


def capacity_tokens(groups: Sequence[KVCacheGroup]) -> int:
    """Length of the longest sequence that fits when it is alone."""

    def fits(num_tokens: int) -> bool:
        return all(group.policy.max_blocks_held(num_tokens) < group.num_blocks for group in groups)

    if fits(UNLIMITED_TOKENS):
        return UNLIMITED_TOKENS
    low, high = 0, UNLIMITED_TOKENS  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
