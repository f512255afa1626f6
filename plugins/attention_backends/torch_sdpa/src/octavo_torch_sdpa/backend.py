"""The backend: scatter this step's keys and values, gather each segment's, attend.

Owns: the KV layout and the mathematics. Must never know: which model the layers belong to, or how blocks are allotted.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from octavo.spec import AttentionLayerParams, AttentionMetadataInputs, FullAttentionSpec, KVCacheSpec
from octavo_torch_sdpa.segments import Segment, Segments


class TorchSDPABackend:
    """Paged attention in plain torch. Stateless; the contract is `octavo.spec.AttentionBackend`.

    The operation is scaled dot-product attention (Vaswani et al. 2017, section 3.2.1) with, where a layer asks for
    them: grouped query heads (Ainslie et al. 2023), sliding window (Jiang et al. 2023, section 2), linear biases
    (Press et al. 2022, section 3), soft caps (Gemma 2 report, section 2) and sinks (gpt-oss model card, section 2).
    """

    def __init__(self, options: object = None) -> None:
        """There are no options."""

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> tuple[int, ...]:
        """Keys and then values: each half is a flat array of slots, and each slot one contiguous row."""
        assert isinstance(spec, FullAttentionSpec)
        return (2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)

    def build_metadata(self, inputs: AttentionMetadataInputs) -> Segments:
        return Segments(inputs)

    def forward(
        self,
        layer: AttentionLayerParams,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        kv_cache: torch.Tensor,  # [2, num_blocks, block_size, num_kv_heads, head_dim]
        metadata: Any,
        sinks: torch.Tensor | None = None,  # [num_heads]
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
        keys, values = kv_cache.flatten(1, 2).unbind(0)  # [num_slots, num_kv_heads, head_dim]
        keys[metadata.slot_mapping] = key
        values[metadata.slot_mapping] = value

        needs_scores = layer.soft_cap is not None or layer.alibi_slopes is not None or layer.has_sinks
        output = torch.empty_like(query)
        for segment in metadata.for_window(layer.sliding_window):
            # Query heads of one KV head join the query length: torch's own way with grouped heads is slow on a CPU.
            q = _fold(query[segment.rows], layer.num_kv_heads)  # [num, num_kv_heads, group * query_len, head_dim]
            k = keys[segment.slots].transpose(1, 2)  # [num, num_kv_heads, key_len, head_dim]
            v = values[segment.slots].transpose(1, 2)
            if needs_scores:
                attended = _attend_explicitly(layer, segment, q, k, v, sinks)
            else:
                group = layer.num_heads // layer.num_kv_heads
                visible = segment.visible.repeat(1, group, 1).unsqueeze(1)  # [num, 1, group * query_len, key_len]
                attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=layer.scale)
            output[segment.rows] = _unfold(attended, segment.rows.shape[1])
        return output


def _fold(tensor: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[num, query_len, num_heads, head_dim] to [num, num_kv_heads, group * query_len, head_dim]."""
    return tensor.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _unfold(tensor: torch.Tensor, query_len: int) -> torch.Tensor:
    """[num, num_kv_heads, group * query_len, head_dim] to [num, query_len, num_heads, head_dim]."""
    return tensor.unflatten(2, (-1, query_len)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _attend_explicitly(
    layer: AttentionLayerParams,
    segment: Segment,
    query: torch.Tensor,  # [num, num_kv_heads, group * query_len, head_dim]
    key: torch.Tensor,  # [num, num_kv_heads, key_len, head_dim]
    value: torch.Tensor,  # [num, num_kv_heads, key_len, head_dim]
    sinks: torch.Tensor | None,  # [num_heads]
) -> torch.Tensor:  # [num, num_kv_heads, group * query_len, head_dim]
    """Attention whose scores are changed on the way, which torch's fused kernels cannot do. In float32."""
    per_head = (1, layer.num_kv_heads, -1, 1, 1)
    scores = (query.float() @ key.float().transpose(-1, -2)) * layer.scale
    scores = scores.unflatten(2, (-1, segment.rows.shape[1]))  # [num, num_kv_heads, group, query_len, key_len]
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if layer.alibi_slopes is not None:
        distance = segment.key_positions[:, None, :] - segment.query_positions[:, :, None]
        slopes = torch.tensor(layer.alibi_slopes, device=scores.device)
        scores = scores + slopes.view(per_head) * distance[:, None, None]
    scores = scores.masked_fill(~segment.visible[:, None, None], -torch.inf)
    if layer.has_sinks:
        assert sinks is not None
        sink = sinks.float().view(per_head).expand(*scores.shape[:-1], 1)
        probabilities = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        probabilities = torch.softmax(scores, dim=-1)
    return (probabilities.flatten(2, 3) @ value.float()).to(query.dtype)
