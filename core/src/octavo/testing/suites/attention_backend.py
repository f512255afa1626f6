"""Laws of attention backends: what paging, batching and chunking do to attention is nothing.

Owns: `AttentionBackendSuite`. Must never know: how any backend computes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from octavo.spec import AttentionBackend, AttentionCapabilities, AttentionLayerParams, FullAttentionSpec, KVCacheSpec
from octavo.testing.suites.paged_case import PagedCase
from octavo.testing.suites.subject import PluginSuite

FEATURES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "window-1": {"sliding_window": 1},
    "window-5": {"sliding_window": 5},
    "soft-cap": {"soft_cap": 2.0},
    "alibi": {"alibi": True},
    "sinks": {"has_sinks": True},
    "all": {"sliding_window": 4, "soft_cap": 3.0, "alibi": True, "has_sinks": True},
}
"""Layers by what they ask for; a backend is tried with those that its capabilities do not refuse."""


class AttentionBackendSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "attention_backends"

    head_sizes: Sequence[int] = ()
    block_sizes: Sequence[int] = ()
    tolerance: ClassVar[Mapping[str, float]] = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
    """How far an answer may be from the definition, by dtype."""

    def backend(self) -> AttentionBackend:
        return self.offer.make(self.extensions.options_of(self.offer))

    def spec(self, **shape: Any) -> KVCacheSpec:
        """A KV cache that the backend reads; `shape` as of `FullAttentionSpec`."""
        return FullAttentionSpec(**shape)

    @property
    def capabilities(self) -> AttentionCapabilities:
        return self.offer.entry.capabilities

    def own_head_sizes(self) -> list[int]:
        unit, longest = self.capabilities.head_dim_multiple, self.capabilities.max_head_dim or math.inf
        return list(self.head_sizes) or [unit * k for k in (1, 3, 16) if unit * k <= longest]

    def own_block_sizes(self) -> list[int]:
        return list(self.block_sizes) or [self.capabilities.block_size_multiple * k for k in (1, 3, 16)]

    def layer(self, num_kv_heads: int = 2, group: int = 2, head_dim: int = 0, **features: Any) -> AttentionLayerParams:
        head_dim, num_heads = head_dim or self.own_head_sizes()[-1], num_kv_heads * group
        if features.pop("alibi", False):
            features["alibi_slopes"] = tuple(2.0 ** -(1 + head) for head in range(num_heads))
        shape = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        return AttentionLayerParams(**shape, scale=head_dim**-0.5, **features)

    def case(
        self,
        layer: AttentionLayerParams,
        num_tokens: Sequence[int],
        block_size: int = 0,
        dtype: str = "float32",
        device: str | None = None,
        seed: int = 0,
    ) -> PagedCase:
        """Skips where the backend refuses it, for that is its right."""
        device, dtype = device or self._devices()[0], dtype if dtype in self.capabilities.dtypes else self._dtypes()[0]
        shape = {"num_kv_heads": layer.num_kv_heads, "head_dim": layer.head_dim, "dtype": dtype}
        spec = self.spec(block_size=block_size or self.own_block_sizes()[1], **shape)
        refusal = self.offer.entry.unavailable() or self.capabilities.refusal(layer, spec, device, dtype)
        if refusal:
            pytest.skip(f"the backend says: {refusal}")
        kind = getattr(torch, dtype)
        return PagedCase(self.backend(), layer, spec, num_tokens, dtype=kind, device=device, seed=seed)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        choices = {
            "features": [f for f in FEATURES if self._can(f)],
            "device": self._devices(),
            "dtype": self._dtypes(),
            "block_size": self.own_block_sizes(),
            "head_dim": self.own_head_sizes(),
        }
        for name, values in choices.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    def _can(self, features: str) -> bool:
        wanted, can = FEATURES[features], self.capabilities
        flags = {"sliding_window": can.sliding_window, "soft_cap": can.soft_cap, "alibi": can.alibi}
        return all((flags | {"has_sinks": can.sinks})[name] for name in wanted)

    def _devices(self) -> list[str]:
        there = {"cpu": True, "cuda": torch.cuda.is_available()}
        return [d for d in sorted(self.capabilities.devices) if there.get(d)] or sorted(self.capabilities.devices)[:1]

    def _dtypes(self) -> list[str]:
        return [d for d in self.tolerance if d in self.capabilities.dtypes]

    def check(self, case: PagedCase, query_lens: Sequence[int], **which: Any) -> torch.Tensor:
        """A step, compared with the definition of attention."""
        output = case.step(query_lens, **which)
        expected = case.expected(query_lens, **which)
        assert (output.shape, output.dtype) == (expected.shape, expected.dtype)
        tolerance = self.tolerance[str(output.dtype).removeprefix("torch.")]
        torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
        return output

    # Laws

    @pytest.mark.parametrize("seed", range(4))
    def test_prefill_and_decode_in_one_batch(self, features: str, dtype: str, device: str, seed: int) -> None:
        """Sequences of all lengths in scattered blocks, new ones, long ones that decode, and chunks between."""
        rng = random.Random(seed)
        layer = self.layer(rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), **FEATURES[features])
        num_tokens = [rng.randint(2, 45) for _ in range(rng.randint(1, 6))]
        case = self.case(layer, num_tokens, rng.choice(self.own_block_sizes()), dtype, device, seed)
        history = [rng.choice([n - 1, n // 2, 1]) for n in num_tokens]
        self.check(case, history)
        if layer.sliding_window is not None:
            case.drop_what_left_the_window()
        rest = [n - h for n, h in zip(num_tokens, history, strict=True)]
        middle = [rng.choice([1, r]) for r in rest]
        self.check(case, middle)

    def test_lengths_about_the_edges_of_blocks(self, block_size: int) -> None:
        """Everything that ends one before, at and one behind a block's end; and then goes on over it."""
        lengths = [n for k in (1, 2, 3) for n in (k * block_size - 1, k * block_size, k * block_size + 1) if n > 0]
        for more in (1, 2, block_size + 1):
            case = self.case(self.layer(), [n + 2 * more for n in lengths], block_size)
            self.check(case, lengths)
            self.check(case, [more] * len(lengths))
            self.check(case, [more] * len(lengths))

    def test_head_sizes_and_groups_of_heads(self, head_dim: int) -> None:
        for num_kv_heads, group in ((1, 1), (1, 5), (4, 1), (2, 3), (1, 71)):
            case = self.case(self.layer(num_kv_heads, group, head_dim), [9, 20])
            self.check(case, [8, 15])
            self.check(case, [1, 5])

    def test_chunks_are_as_the_whole(self, features: str) -> None:
        layer, length = self.layer(**FEATURES[features]), 37
        for size in (1, 7, 16):
            case = self.case(layer, [length])
            for start in range(0, length, size):
                self.check(case, [min(size, length - start)])
                if layer.sliding_window is not None:
                    case.drop_what_left_the_window()

    def test_a_sequence_does_not_depend_on_its_batch_mates(self) -> None:
        num_tokens = [4, 41, 18, 101, 2, 64, 65]
        case = self.case(self.layer(), num_tokens)
        case.step([n - 1 for n in num_tokens])
        metadata = case.backend.build_metadata(case.metadata_inputs(range(7), [1] * 7))
        together = case.forward(metadata, [1] * 7)
        tolerance = self.tolerance[str(together.dtype).removeprefix("torch.")]
        for i in range(len(num_tokens)):
            metadata = case.backend.build_metadata(case.metadata_inputs([i], [1]))
            alone = case.forward(metadata, [1], [i])
            torch.testing.assert_close(alone[0], together[i], atol=tolerance, rtol=tolerance)

    def test_sequences_that_share_their_first_blocks(self, features: str, dtype: str) -> None:
        """As prefix caching does: a few of them, most of them or none, and with queries of one token or several."""
        layer, block_size = self.layer(**FEATURES[features]), self.own_block_sizes()[1]
        num_shared = [0, 9, 9, 8, 0, 1, 9, 5]
        case = self.case(layer, [n * block_size + 300 for n in num_shared], block_size, dtype)
        roots = [i for i, n in enumerate(num_shared) if n == 0]
        case.step([290] * len(roots), roots)
        for i, n in enumerate(num_shared):
            if n:
                case.share(i, roots[i > 4], min(n, 290 // block_size))
        for query_lens in ([1] * 8, [1, 1, 3, 2, 1, 4, 1, 30], [1] * 8):
            self.check(case, query_lens)

    def test_only_the_slots_of_the_step_are_written(self) -> None:
        """Every other one stays NaN, or what it was."""
        case = self.case(self.layer(), [5, 9])
        slot = 2 * case.layer.num_kv_heads * case.layer.head_dim
        case.step([5, 8])
        assert int(case.kv_cache.isfinite().sum()) == 13 * slot
        before = case.kv_cache.clone()
        case.step([1], [1])
        assert int(case.kv_cache.isfinite().sum()) == 14 * slot
        old = before.isfinite()
        assert torch.equal(case.kv_cache[old], before[old])

    def test_layers_of_one_group_share_metadata(self) -> None:
        """Also a layer with a window and one without, in either order."""
        layers = [self.layer(), self.layer()]
        if self.capabilities.sliding_window:
            layers[1] = replace(layers[1], sliding_window=3)
        for one, other in (layers, layers[::-1]):
            case = self.case(one, [12, 30])
            case.step([11, 20])
            metadata = case.backend.build_metadata(case.metadata_inputs([0, 1], [1, 10]))
            for layer in (one, other, one):
                output = case.forward(metadata, [1, 10], layer=layer)
                case.num_computed = [12, 30]
                expected = case.expected([1, 10], layer=layer)
                case.num_computed = [11, 20]
                tolerance = self.tolerance[str(output.dtype).removeprefix("torch.")]
                torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)

    def test_two_caches_in_one_process_do_not_meet(self) -> None:
        cases = [self.case(self.layer(), [20, 7], seed=seed) for seed in range(2)]
        for query_lens in ([6, 3], [9, 1], [1, 1]):
            for case in cases:
                self.check(case, query_lens)

    def test_the_cache_fills_the_pages(self, dtype: str) -> None:
        shape = {"num_kv_heads": 3, "head_dim": self.own_head_sizes()[0], "dtype": dtype}
        spec = self.spec(block_size=self.own_block_sizes()[0], **shape)
        size = math.prod(self.backend().kv_shape(spec, 11)) * getattr(torch, dtype).itemsize
        assert size == 11 * spec.page_size_bytes
