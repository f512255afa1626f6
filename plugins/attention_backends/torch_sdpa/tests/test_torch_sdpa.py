"""The reference backend against a naive one that looks at one head of one query at a time."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from octavo.spec import AttentionLayerParams, AttentionMetadataInputs, FullAttentionSpec, load_factory
from octavo_torch_sdpa import plugin, segments
from octavo_torch_sdpa.backend import TorchSDPABackend

NUM_BLOCKS_SPARE = 7


def naive(layer, query, keys, values, position, sinks):
    """One query [num_heads, head_dim] over all keys of its sequence, in float64."""
    rows = []
    for head in range(layer.num_heads):
        kv_head = head // (layer.num_heads // layer.num_kv_heads)
        first = 0 if layer.sliding_window is None else max(0, position - layer.sliding_window + 1)
        weights = {}
        for p in range(first, position + 1):
            score = layer.scale * float(query[head].double() @ keys[p, kv_head].double())
            if layer.soft_cap is not None:
                score = layer.soft_cap * math.tanh(score / layer.soft_cap)
            if layer.alibi_slopes is not None:
                score += layer.alibi_slopes[head] * (p - position)
            weights[p] = math.exp(score)
        total = sum(weights.values()) + (math.exp(float(sinks[head])) if layer.has_sinks else 0.0)
        rows.append(sum(w / total * values[p, kv_head].double() for p, w in weights.items()))
    return torch.stack(rows)


class Case:
    """Sequences with random histories in scattered blocks; every slot that nobody owns is NaN."""

    def __init__(self, layer, seq_lens, query_lens, block_size, dtype=torch.float32, seed=0, device="cpu"):
        self.layer, self.query_lens, self.block_size = layer, query_lens, block_size
        generator = torch.Generator().manual_seed(seed)
        rand = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
        kv = (layer.num_kv_heads, layer.head_dim)
        self.keys = [rand(n, *kv) for n in seq_lens]
        self.values = [rand(n, *kv) for n in seq_lens]
        self.queries = [rand(q, layer.num_heads, layer.head_dim) for q in query_lens]
        self.sinks = rand(layer.num_heads) if layer.has_sinks else None
        self.seq_lens = seq_lens
        num_blocks = [-(-n // block_size) for n in seq_lens]
        order = list(range(1, sum(num_blocks) + 1 + NUM_BLOCKS_SPARE))
        random.Random(seed).shuffle(order)
        self.table = np.zeros((len(seq_lens), max(num_blocks) + 2), dtype=np.int32)
        for row, count in zip(self.table, num_blocks, strict=True):
            row[:count] = [order.pop() for _ in range(count)]
        self.spec = FullAttentionSpec(
            block_size=block_size,
            num_kv_heads=kv[0],
            head_dim=kv[1],
            dtype=str(dtype).removeprefix("torch."),
        )
        self.backend = TorchSDPABackend()
        total = sum(num_blocks) + 1 + NUM_BLOCKS_SPARE
        self.kv_cache = torch.full(self.backend.kv_shape(self.spec, total), torch.nan, dtype=dtype, device=device)
        self.device = device

    def slots(self, seq, positions):
        return [int(self.table[seq, p // self.block_size]) * self.block_size + p % self.block_size for p in positions]

    def write_history(self):
        window = self.layer.sliding_window
        for seq, (n, q) in enumerate(zip(self.seq_lens, self.query_lens, strict=True)):
            first = 0 if window is None else max(0, n - q - window + 1)
            slots = self.slots(seq, range(first, n - q))  # what fell out of the window stays NaN
            self.kv_cache[0].flatten(0, 1)[slots] = self.keys[seq][first : n - q].to(self.device)
            self.kv_cache[1].flatten(0, 1)[slots] = self.values[seq][first : n - q].to(self.device)
            if window is not None:
                self.table[seq, : first // self.block_size] = 0  # and its blocks were given back

    def inputs(self):
        starts = np.cumsum([0, *self.query_lens]).astype(np.int32)
        seq_lens = np.array(self.seq_lens, dtype=np.int32)
        spans = [range(n - q, n) for n, q in zip(self.seq_lens, self.query_lens, strict=True)]
        slots = [s for seq, span in enumerate(spans) for s in self.slots(seq, span)]
        to = lambda a: torch.from_numpy(np.asarray(a)).to(self.device)  # noqa: E731
        return AttentionMetadataInputs(
            block_table=to(self.table),
            slot_mapping=to(np.array(slots, dtype=np.int64)),
            query_start_loc=to(starts),
            seq_lens=to(seq_lens),
            positions=to(np.array([p for span in spans for p in span], dtype=np.int64)),
            block_table_cpu=self.table,
            query_start_loc_cpu=starts,
            seq_lens_cpu=seq_lens,
            max_query_len=max(self.query_lens),
            max_seq_len=max(self.seq_lens),
            block_size=self.block_size,
        )

    def run(self):
        self.write_history()
        new = lambda parts: torch.cat([p[len(p) - q :] for p, q in zip(parts, self.query_lens, strict=True)])  # noqa: E731
        return self.backend.forward(
            self.layer,
            torch.cat(self.queries).to(self.device),
            new(self.keys).to(self.device),
            new(self.values).to(self.device),
            self.kv_cache,
            self.backend.build_metadata(self.inputs()),
            None if self.sinks is None else self.sinks.to(self.device),
        ).cpu()

    def expected(self):
        rows = []
        for seq, query in enumerate(self.queries):
            first = self.seq_lens[seq] - self.query_lens[seq]
            rows += [
                naive(self.layer, q, self.keys[seq], self.values[seq], first + i, self.sinks)
                for i, q in enumerate(query)
            ]
        return torch.stack(rows)


def make_layer(num_heads=4, num_kv_heads=2, head_dim=8, **features):
    if features.pop("alibi", False):
        features["alibi_slopes"] = tuple(2.0 ** -(1 + h) for h in range(num_heads))
    return AttentionLayerParams(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **features
    )


FEATURES = [
    {},
    {"sliding_window": 1},
    {"sliding_window": 5},
    {"soft_cap": 2.0},
    {"alibi": True},
    {"has_sinks": True},
    {"sliding_window": 4, "soft_cap": 3.0, "alibi": True, "has_sinks": True},
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "+".join(f) or "plain")
def test_mixed_batches_against_the_naive_one(features, seed):
    rng = random.Random(seed)
    num_kv_heads = rng.choice([1, 2, 3])
    layer = make_layer(num_kv_heads * rng.choice([1, 2, 3, 4]), num_kv_heads, rng.choice([1, 3, 8, 16]), **features)
    seq_lens = [rng.randint(1, 40) for _ in range(rng.randint(1, 6))]
    query_lens = [rng.choice([1, 1, min(3, n), min(7, n), n]) for n in seq_lens]
    case = Case(layer, seq_lens, query_lens, rng.choice([1, 2, 3, 8, 16, 32]), seed=seed)
    torch.testing.assert_close(case.run().double(), case.expected(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", FEATURES, ids=lambda f: "+".join(f) or "plain")
def test_half_precision(features, dtype):
    case = Case(make_layer(6, 2, 16, **features), [1, 9, 30, 17], [1, 9, 1, 6], 4, dtype, seed=3)
    output = case.run()
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), case.expected(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("features", [{}, {"sliding_window": 6}, {"alibi": True}], ids=["plain", "window", "alibi"])
def test_long_prompts_are_cut_without_a_trace(monkeypatch, features):
    layer = make_layer(**features)
    whole = Case(layer, [50, 33], [40, 33], 4).run()
    monkeypatch.setattr(segments, "MAX_QUERY_LEN", 7)
    torch.testing.assert_close(Case(layer, [50, 33], [40, 33], 4).run(), whole, atol=2e-6, rtol=1e-5)


def test_many_decodes_are_few_segments():
    lens = [random.Random(s).randint(1, 2000) for s in range(64)]
    case = Case(make_layer(2, 1, 1), lens, [1] * 64, 16)
    parts = case.backend.build_metadata(case.inputs()).for_window(None)
    assert len(parts) <= 11
    assert sum(part.slots.numel() for part in parts) <= 2 * sum(lens)


def test_the_plugin_offers_it_and_imports_no_torch():
    (entry,) = plugin.octavo_register_attention_backends()
    assert load_factory(entry.factory) is TorchSDPABackend
    assert entry.priority == 0
    spec = FullAttentionSpec(block_size=1, num_kv_heads=1, head_dim=5, dtype="float16")
    layer = make_layer(3, 1, 5, sliding_window=3, soft_cap=1.0, alibi=True, has_sinks=True)
    assert entry.capabilities.refusal(layer, spec, "cuda", "float16") is None
    code = "import sys, octavo_torch_sdpa.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
