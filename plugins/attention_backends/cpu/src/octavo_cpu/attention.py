"""The attention backend: one call of a kernel for each layer.

Owns: the way from tensors to the kernel's arguments. Must never know: how attention is computed.
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.spec import AttentionLayerParams, AttentionMetadataInputs, FullAttentionSpec, KVCacheSpec
from octavo_cpu.library import DTYPES, AttentionCall, load_kernels

STEP_FIELDS = ("slot_mapping", "block_table", "query_start", "seq_lens", "block_table_stride", "num_seqs")
"""Arguments of the kernel that are another for each step, and not determined by its number of tokens."""


class StepCall:
    """What all layers of one step have in common, filled into the kernel's arguments once."""

    def __init__(self, inputs: AttentionMetadataInputs) -> None:
        self._inputs = inputs  # owns the memory that the pointers lead to
        self.call = AttentionCall(
            slot_mapping=inputs.slot_mapping.data_ptr(),
            block_table=inputs.block_table.data_ptr(),
            query_start=inputs.query_start_loc.data_ptr(),
            seq_lens=inputs.seq_lens.data_ptr(),
            block_table_stride=inputs.block_table.stride(0),
            num_tokens=inputs.slot_mapping.shape[0],
            num_seqs=inputs.seq_lens.shape[0],
            block_size=inputs.block_size,
        )


class CPUAttentionBackend:
    """Paged attention in native code; the contract is `octavo.spec.AttentionBackend`.

    A query's result is the same, bit for bit, in every batch and every chunk of a prompt (`kernels/attention.cpp`).
    """

    def __init__(self, options: Any = None) -> None:
        """`options`: a `CPUOptions`, or None for the defaults."""
        self._kernels = load_kernels(options.isa if options else "auto")
        self._slopes: dict[tuple[float, ...], torch.Tensor] = {}
        """Alibi slopes of layers, float32 [num_heads]."""

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> tuple[int, ...]:
        """Keys and then values; how a page is laid out is the kernel's own affair."""
        assert isinstance(spec, FullAttentionSpec)
        return (2, num_blocks, spec.num_kv_heads, spec.block_size * spec.head_dim)

    def build_metadata(self, inputs: AttentionMetadataInputs) -> StepCall:
        return StepCall(inputs)

    def forward(
        self,
        layer: AttentionLayerParams,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        kv_cache: torch.Tensor,  # [2, num_blocks, num_kv_heads, block_size * head_dim]
        metadata: StepCall,
        sinks: torch.Tensor | None = None,  # [num_heads]
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
        query, key, value = (_rows(x) for x in (query, key, value))
        sinks = None if sinks is None else sinks.float().contiguous()
        out = torch.empty(query.shape, dtype=query.dtype)
        call = metadata.call
        call.out, call.out_stride = out.data_ptr(), out.stride(0)
        call.query, call.query_stride = query.data_ptr(), query.stride(0)
        call.key, call.key_stride = key.data_ptr(), key.stride(0)
        call.value, call.value_stride = value.data_ptr(), value.stride(0)
        call.kv_cache, call.num_blocks = kv_cache.data_ptr(), kv_cache.shape[1]
        call.num_heads, call.num_kv_heads, call.head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        call.sliding_window, call.soft_cap = layer.sliding_window or 0, layer.soft_cap or 0.0
        call.scale, call.dtype = layer.scale, DTYPES[query.dtype]
        call.alibi_slopes = self._slopes_of(layer)
        call.sinks = None if sinks is None else sinks.data_ptr()
        self._kernels.attention(call)
        return out

    def _slopes_of(self, layer: AttentionLayerParams) -> int | None:
        """Address of the layer's alibi slopes."""
        if layer.alibi_slopes is None:
            return None
        if layer.alibi_slopes not in self._slopes:
            self._slopes[layer.alibi_slopes] = torch.tensor(layer.alibi_slopes, dtype=torch.float32)
        return self._slopes[layer.alibi_slopes].data_ptr()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [num_tokens, heads, head_dim] with each token's heads in one piece."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
