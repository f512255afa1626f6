"""Sequences with random keys and values in scattered blocks, for a backend and for the definition of attention.

Owns: `PagedCase`. Must never know: how a backend lays its cache out. So it writes only through the backend itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from octavo.spec import AttentionBackend, AttentionLayerParams, AttentionMetadataInputs, KVCacheSpec
from octavo.testing.dense_attention import dense_attention

NUM_SPARE_BLOCKS = 5


class PagedCase:
    """`num_tokens[i]` tokens are all that sequence i will ever have. The cache begins as NaN throughout."""

    def __init__(
        self,
        backend: AttentionBackend,
        layer: AttentionLayerParams,
        spec: KVCacheSpec,
        num_tokens: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.backend, self.layer, self.device = backend, layer, device
        self.block_size = spec.block_size
        generator = torch.Generator().manual_seed(seed)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.queries = [rand(n, layer.num_heads, layer.head_dim) for n in num_tokens]
        self.keys = [rand(n, layer.num_kv_heads, layer.head_dim) for n in num_tokens]
        self.values = [rand(n, layer.num_kv_heads, layer.head_dim) for n in num_tokens]
        self.sinks = rand(layer.num_heads) if layer.has_sinks else None
        self.num_computed = [0] * len(num_tokens)
        counts = [-(-n // self.block_size) for n in num_tokens]
        num_blocks = sum(counts) + NUM_SPARE_BLOCKS + 1
        order = list(range(1, num_blocks))
        random.Random(seed).shuffle(order)
        self.table = np.zeros((len(num_tokens), max(counts) + 2), dtype=np.int32)
        for row, count in zip(self.table, counts, strict=True):
            row[:count] = [order.pop() for _ in range(count)]
        shape = tuple(backend.kv_shape(spec, num_blocks))
        self.kv_cache = torch.full(shape, torch.nan, dtype=dtype, device=device)

    def share(self, sequence: int, other: int, num_blocks: int) -> None:
        """Let a sequence begin with the first blocks of another, which are computed."""
        length = num_blocks * self.block_size
        assert self.num_computed[other] >= length
        for kv in (self.keys, self.values):
            kv[sequence][:length] = kv[other][:length]
        self.table[sequence, :num_blocks] = self.table[other, :num_blocks]
        self.num_computed[sequence] = length

    def metadata_inputs(self, which: Sequence[int], query_lens: Sequence[int]) -> AttentionMetadataInputs:
        """For a step of some of the sequences, each going on by so many tokens."""
        starts = np.cumsum([0, *query_lens]).astype(np.int32)
        seq_lens = np.array([self.num_computed[i] + q for i, q in zip(which, query_lens, strict=True)], dtype=np.int32)
        positions = np.concatenate([np.arange(n - q, n) for n, q in zip(seq_lens, query_lens, strict=True)])
        table = np.ascontiguousarray(self.table[list(which)])
        blocks = np.repeat(table, query_lens, axis=0)[np.arange(len(positions)), positions // self.block_size]
        slots = blocks.astype(np.int64) * self.block_size + positions % self.block_size

        def there(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(self.device)

        return AttentionMetadataInputs(
            block_table=there(table),
            slot_mapping=there(slots),
            query_start_loc=there(starts),
            seq_lens=there(seq_lens),
            positions=there(positions.astype(np.int64)),
            block_table_cpu=table,
            query_start_loc_cpu=starts,
            seq_lens_cpu=seq_lens,
            max_query_len=max(query_lens),
            max_seq_len=int(seq_lens.max()),
            block_size=self.block_size,
        )

    def step(
        self, query_lens: Sequence[int], which: Sequence[int] | None = None, layer: AttentionLayerParams | None = None
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim] on the CPU
        """Let sequences go on by so many tokens; what the backend answers, in the dtype of the case."""
        which = range(len(self.table)) if which is None else which
        metadata = self.backend.build_metadata(self.metadata_inputs(which, query_lens))
        output = self.forward(metadata, query_lens, which, layer)
        for i, q in zip(which, query_lens, strict=True):
            self.num_computed[i] += q
        return output

    def forward(
        self,
        metadata: object,
        query_lens: Sequence[int],
        which: Sequence[int] | None = None,
        layer: AttentionLayerParams | None = None,
    ) -> torch.Tensor:
        """One layer over a step's metadata; nothing is counted as computed."""
        which = range(len(self.table)) if which is None else which
        query, key, value = (
            torch.cat([x[i][self.num_computed[i] :][:q] for i, q in zip(which, query_lens, strict=True)])
            for x in (self.queries, self.keys, self.values)
        )
        there = query.to(self.device), key.to(self.device), value.to(self.device)
        sinks = None if self.sinks is None else self.sinks.to(self.device)
        output = self.backend.forward(layer or self.layer, *there, self.kv_cache, metadata, sinks)
        for given, original in zip(there, (query, key, value), strict=True):
            assert torch.equal(given.cpu(), original), "the backend changed its inputs"
        return output.cpu()

    def expected(
        self, query_lens: Sequence[int], which: Sequence[int] | None = None, layer: AttentionLayerParams | None = None
    ) -> torch.Tensor:
        """What the last `step` should have answered."""
        which = range(len(self.table)) if which is None else which
        ends = [self.num_computed[i] for i in which]
        return torch.cat(
            [
                dense_attention(
                    layer or self.layer,
                    self.queries[i][end - q : end],
                    self.keys[i][:end],
                    self.values[i][:end],
                    self.sinks,
                )
                for i, end, q in zip(which, ends, query_lens, strict=True)
            ]
        )

    def drop_what_left_the_window(self) -> None:
        """Give blocks back that no later position reads; whoever gets them writes NaN."""
        window = self.layer.sliding_window
        assert window is not None
        for i, computed in enumerate(self.num_computed):
            num_dropped = max(0, computed - window + 1) // self.block_size
            dropped = self.table[i, :num_dropped].copy()
            self.table[i, :num_dropped] = 0
            if num_dropped:
                self._overwrite(dropped)

    def _overwrite(self, block_ids: np.ndarray) -> None:
        length = len(block_ids) * self.block_size
        other = PagedCase.__new__(PagedCase)
        other.__dict__.update(self.__dict__)
        other.table, other.num_computed = block_ids.reshape(1, -1), [0]
        other.queries = [self.queries[0].new_zeros(length, self.layer.num_heads, self.layer.head_dim)]
        kv = self.keys[0].new_full((length, self.layer.num_kv_heads, self.layer.head_dim), torch.nan)
        other.keys = other.values = [kv]
        metadata = self.backend.build_metadata(other.metadata_inputs([0], [length]))
        self.backend.forward(
            self.layer,
            other.queries[0].to(self.device),
            kv.to(self.device),
            kv.to(self.device),
            self.kv_cache,
            metadata,
            None if self.sinks is None else self.sinks.to(self.device),
        )
