"""Laws of KV policies: counts that fit together, hits that are there, and no block that is needed and gone.

Owns: `KVPolicySuite`. Must never know: which kind of cache it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from octavo.kv import KVCacheGroup, KVCacheManager, SequenceBlocks
from octavo.request import Request
from octavo.spec import KVCacheSpec, KVPolicy
from octavo.testing.suites.subject import PluginSuite, sequence

LONGEST = 90
"""Tokens of the longest sequence that is tried."""


class KVPolicySuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "kv_policies"

    specs: Sequence[KVCacheSpec] = ()
    max_step_tokens: int = 8

    def policy(self, spec: KVCacheSpec) -> KVPolicy:
        offer = self.extensions.kv_policies.find(type(spec).__name__)
        return offer.make(spec, self.max_step_tokens)

    def reads(self, spec: KVCacheSpec, position: int) -> Iterable[int]:
        """Positions whose cache the query at `position` reads. Override it: by default the policy is believed."""
        return range(self.policy(spec).first_needed(position) * spec.block_size, position + 1)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        assert self.specs, "set `specs` to some caches of the policy's kind"
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize("spec", self.specs, ids=lambda spec: f"{type(spec).__name__}-{spec.block_size}")

    # Laws

    def test_block_tables_only_grow_and_hold_every_position(self, spec: KVCacheSpec) -> None:
        policy = self.policy(spec)
        lengths = [policy.blocks_for(n) for n in range(LONGEST)]
        assert lengths[0] == 0
        assert lengths == sorted(lengths)
        assert all(length * spec.block_size >= n for n, length in enumerate(lengths)), "a position has no slot"

    def test_what_is_needed_never_comes_back(self, spec: KVCacheSpec) -> None:
        policy = self.policy(spec)
        first = [policy.first_needed(n) for n in range(LONGEST)]
        assert first[0] == 0
        assert first == sorted(first), "a block that was given back is needed again"
        for n, index in enumerate(first):
            assert index <= n // spec.block_size, "the block that the next position is written to is needed"
            read = min(p for q in range(n, min(n + self.max_step_tokens, LONGEST)) for p in self.reads(spec, q))
            assert index * spec.block_size <= read, f"position {read} is read after {n} tokens, and its block is gone"

    def test_no_sequence_holds_more_than_it_says(self, spec: KVCacheSpec) -> None:
        policy = self.policy(spec)
        bounds = [policy.max_blocks_held(n) for n in range(LONGEST)]
        assert bounds == sorted(bounds)
        for n, bound in enumerate(bounds):
            assert bound <= policy.blocks_for(n)
            for computed in range(n + 1):
                scheduled = min(n, computed + self.max_step_tokens)
                assert policy.blocks_for(scheduled) - policy.first_needed(computed) <= bound

    @pytest.mark.parametrize("density", [0.0, 0.5, 0.9, 1.0])
    def test_a_hit_is_the_longest_that_can_be_used(self, spec: KVCacheSpec, density: float) -> None:
        policy = self.policy(spec)
        if not policy.prefix_cacheable:
            pytest.skip("its blocks are not shared")
        rng = random.Random(density)
        hashes = [f"hash-{i}".encode() for i in range(LONGEST // spec.block_size)]
        for _ in range(60):
            cached = {h: 100 + i for i, h in enumerate(hashes) if rng.random() < density}
            limit = rng.randint(0, len(hashes))
            known = hashes[: rng.randint(0, len(hashes))]
            hit = policy.longest_hit(known, cached.get, limit)
            lengths = range(min(limit, len(known)) + 1)
            assert len(hit) in lengths, "the hit is longer than what it was given"
            usable = [n for n in lengths if self._usable(spec, policy, known, cached, n)]
            assert len(hit) == max(usable)
            needed = policy.first_needed(len(hit) * spec.block_size)
            for i, block_id in enumerate(hit):
                assert block_id == cached.get(known[i]) or (block_id is None and i < needed), f"block {i} of {hit}"

    @staticmethod
    def _usable(spec: KVCacheSpec, policy: KVPolicy, hashes: Sequence[bytes], cached: dict[bytes, int], n: int) -> bool:
        first = policy.first_needed(n * spec.block_size)
        return n * spec.block_size % policy.alignment == 0 and all(h in cached for h in hashes[first:n])

    def test_it_is_a_function(self, spec: KVCacheSpec) -> None:
        """Same question, same answer, whatever was asked meanwhile and of which instance."""
        one, other = self.policy(spec), self.policy(spec)
        questions = [(name, n) for name in ("blocks_for", "max_blocks_held", "first_needed") for n in range(LONGEST)]
        questions += [("eviction_key", i) for i in range(LONGEST)]
        answers = [getattr(one, name)(n) for name, n in questions]
        random.Random(0).shuffle(both := list(zip(questions, answers, strict=True)))
        assert all(getattr(policy, name)(n) == answer for (name, n), answer in both for policy in (one, other))
        assert one.alignment % spec.block_size == 0 or spec.block_size % one.alignment == 0

    @pytest.mark.parametrize("seed", range(4))
    def test_every_block_that_is_read_holds_what_was_written(self, seed: int) -> None:
        """Sequences with shared prefixes come, grow, are preempted and end, in a cache that is too small for them."""
        rng = random.Random(seed)
        groups = [KVCacheGroup((f"layer-{i}",), s, self.policy(s), 40) for i, s in enumerate(self.specs)]
        unit = math.gcd(*(s.block_size for s in self.specs))
        manager = KVCacheManager(groups, unit)
        world = _World(self, manager, rng)
        for _ in range(250):
            world.act()
            manager.check_integrity(world.running)
        for one in list(world.running):
            world.end(one)
        manager.check_integrity([])
        assert manager.num_used_blocks == 0
        assert world.num_hit_tokens > 0 or not manager.prefix_caching, "no prefix was ever found, so little was tested"


@dataclass(eq=False)
class _Sequence:
    request: Request
    token_ids: list[int]
    blocks: SequenceBlocks
    num_computed: int = 0


@dataclass
class _World:
    """Sequences over one manager, and what each slot of each group holds: the prefix that its position stands for."""

    suite: KVPolicySuite
    manager: KVCacheManager
    rng: random.Random
    running: list[Any] = field(default_factory=list)
    slots: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)
    num_hit_tokens: int = 0

    def act(self) -> None:
        if not self.running or (len(self.running) < 4 and self.rng.random() < 0.3):
            self._start()
            return
        one = self.rng.choice(self.running)
        if one.num_computed >= LONGEST or self.rng.random() < 0.05:
            self.end(one)
        else:
            self._step(one)

    def end(self, one: _Sequence) -> None:
        self.manager.free(one)
        self.running.remove(one)

    def _start(self) -> None:
        stem = [self.rng.randrange(3)] * self.rng.randint(0, 40)
        tokens = stem + [self.rng.randrange(9) for _ in range(self.rng.randint(1, 20))]
        one = _Sequence(sequence(1, tokens).request, tokens, self.manager.new_blocks())
        hit = self.manager.find_hit(one)
        end = min(len(tokens), hit.num_tokens + self.suite.max_step_tokens)
        if self.manager.allocate(one, end, hit) is not None:
            one.num_computed = hit.num_tokens
            self.num_hit_tokens += hit.num_tokens
            self.running.append(one)
            self._compute(one, end)

    def _step(self, one: _Sequence) -> None:
        """Up to `max_step_tokens` tokens, of which the last may be drafts that are not accepted."""
        end = one.num_computed + self.rng.randint(1, self.suite.max_step_tokens)
        if self.manager.allocate(one, end) is None:
            self.end(one)  # preempted: it comes again as another one
            return
        while len(one.token_ids) < end:
            one.token_ids.append(self.rng.randrange(9))
        can_reject = all(group.policy.rewindable for group in self.manager.groups)
        accepted = max(one.num_computed + 1, end - self.rng.choice([0, 0, 2])) if can_reject else end
        self._compute(one, end, accepted)
        del one.token_ids[max(accepted, len(one.request.prompt_token_ids)) :]

    def _compute(self, one: _Sequence, end: int, accepted: int | None = None) -> None:
        for group_id, group in enumerate(self.manager.groups):
            table, size = one.blocks.tables[group_id], group.spec.block_size
            for position in range(one.num_computed, end):
                key = (group_id, table[position // size], position % size)
                self.slots[key] = tuple(one.token_ids[: position + 1])
            for position in range(one.num_computed, end):
                for read in self.suite.reads(group.spec, position):
                    held = self.slots.get((group_id, table[read // size], read % size))
                    assert table[read // size] != 0, f"position {position} reads {read}, whose block is gone"
                    assert held == tuple(one.token_ids[: read + 1]), f"position {read} holds another prefix"
        one.num_computed = end if accepted is None else accepted
        del one.token_ids[max(one.num_computed, len(one.request.prompt_token_ids)) :]
        self.manager.commit(one, one.num_computed)
