"""A KV policy as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.hookspecs import hookimpl
from octavo.spec import KVCacheSpec, KVPolicyEntry
from octavo.testing import KVPolicySuite


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(KVCacheSpec):
    window: int

    @property
    def page_size_bytes(self):
        return 4 * self.block_size


class Policy:
    """A sliding window."""

    rewindable = True
    prefix_cacheable = True

    def __init__(self, spec, max_step_tokens):
        self.window, self.block_size, self.alignment = spec.window, spec.block_size, spec.block_size
        self.max_step_tokens = max_step_tokens

    def blocks_for(self, num_tokens):
        return -(-num_tokens // self.block_size)

    def max_blocks_held(self, num_tokens):
        return min(self.blocks_for(num_tokens), self.blocks_for(self.window - 1 + self.max_step_tokens) + 1)

    def first_needed(self, num_computed_tokens):
        return max(0, num_computed_tokens - self.window + 1) // self.block_size

    def longest_hit(self, block_hashes, lookup, max_blocks):
        for length in range(min(max_blocks, len(block_hashes)), 0, -1):
            first = self.first_needed(length * self.block_size)
            tail = [lookup(block_hash) for block_hash in block_hashes[first:length]]
            if None not in tail:
                return [None] * first + tail
        return []

    def eviction_key(self, block_index):
        return block_index


class TooLongHit(Policy):
    """Takes the first blocks of a window for unneeded ones."""

    def longest_hit(self, block_hashes, lookup, max_blocks):
        for length in range(min(max_blocks, len(block_hashes)), 0, -1):
            if lookup(block_hashes[length - 1]) is not None:
                return [None] * (length - 1) + [lookup(block_hashes[length - 1])]
        return []


class TooShortHit(Policy):
    """Looks from the front, as if every block were needed."""

    def longest_hit(self, block_hashes, lookup, max_blocks):
        hit = []
        while len(hit) < min(max_blocks, len(block_hashes)) and lookup(block_hashes[len(hit)]) is not None:
            hit.append(lookup(block_hashes[len(hit)]))
        return hit


class TooSmall(Policy):
    """Gives a block back one token too early."""

    def first_needed(self, num_computed_tokens):
        return max(0, num_computed_tokens - self.window + 2) // self.block_size


class Modest(Policy):
    """Says that it holds less than it does while a step runs."""

    def max_blocks_held(self, num_tokens):
        return min(self.blocks_for(num_tokens), self.blocks_for(self.window))


class WindowSuite(KVPolicySuite):
    specs = (WindowSpec(block_size=4, window=9), WindowSpec(block_size=2, window=6))

    def reads(self, spec, position):
        return range(max(0, position + 1 - spec.window), position + 1)


def plugin_of(policy):
    class Plugin:
        @hookimpl
        def octavo_register_kv_policies(self):
            return [KVPolicyEntry(spec_type=WindowSpec, factory=policy)]

    return Plugin()


class TestRight(WindowSuite):
    plugin = plugin_of(Policy)


class TestTooLongHit(WindowSuite):
    plugin = plugin_of(TooLongHit)


class TestTooShortHit(WindowSuite):
    plugin = plugin_of(TooShortHit)


class TestTooSmall(WindowSuite):
    plugin = plugin_of(TooSmall)


class TestModest(WindowSuite):
    plugin = plugin_of(Modest)
