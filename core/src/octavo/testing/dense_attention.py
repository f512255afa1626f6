"""Attention without paging: one whole sequence at a time, straight from the definition. What backends are judged by.

Owns: `DenseAttention`. Must never know: blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.spec import AttentionLayerParams, AttentionMetadataInputs, KVCacheSpec


def dense_attention(
    layer: AttentionLayerParams,
    query: torch.Tensor,  # [num_queries, num_heads, head_dim]
    key: torch.Tensor,  # [num_keys, num_kv_heads, head_dim]
    value: torch.Tensor,  # [num_keys, num_kv_heads, head_dim]
    sinks: torch.Tensor | None = None,  # [num_heads]
) -> torch.Tensor:  # [num_queries, num_heads, head_dim]
    """Causal attention of the last `num_queries` positions over all `num_keys`; the softmax is in float32."""
    num_queries, num_keys = len(query), len(key)
    group = layer.num_heads // layer.num_kv_heads
    key, value = (x.repeat_interleave(group, dim=1).float() for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    query_positions = torch.arange(num_keys - num_queries, num_keys).unsqueeze(1)
    distance = query_positions - torch.arange(num_keys)  # [num_queries, num_keys]; negative is the future
    if layer.alibi_slopes is not None:
        scores = scores - torch.tensor(layer.alibi_slopes).view(-1, 1, 1) * distance
    hidden = distance < 0
    if layer.sliding_window is not None:
        hidden = hidden | (distance >= layer.sliding_window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(-1, num_queries, 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., :num_keys]
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


class DenseAttention:
    """An `AttentionBackend` for a batch that is one sequence from its first token on. It needs no cache."""

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> Sequence[int]:
        return (0,)

    def build_metadata(self, inputs: AttentionMetadataInputs) -> None:
        return None

    def forward(
        self,
        layer: AttentionLayerParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return dense_attention(layer, query, key, value, sinks)
