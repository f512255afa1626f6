"""The decoder: embedding, layers of attention and gated feed-forward, norm, head.

Owns: the arithmetic of the Llama shape. Must never know: which family it plays (it reads a `DecoderArchitecture`),
batching, caches. Module names are those of the checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from octavo.errors import ModelLoadError
from octavo.nn import (
    Attention,
    LMHead,
    MergedColumnLinear,
    QKVLinear,
    RMSNorm,
    RotaryEmbedding,
    Rotate,
    Rotation,
    RowLinear,
    SiluAndMul,
    VocabEmbedding,
    attention_layers,
)
from octavo.spec import AttentionLayerParams, ForwardBatch, FullAttentionSpec, KVCacheSpec, ModelContext
from octavo_llama.architecture import (
    Config,
    DecoderArchitecture,
    describe_llama,
    describe_mistral,
    describe_qwen2,
    describe_qwen3,
    describe_smollm3,
)


class SelfAttention(nn.Module):
    """Grouped-query attention with fused projections."""

    def __init__(self, arch: DecoderArchitecture, layer: int, context: ModelContext) -> None:
        super().__init__()
        heads, kv_heads, head_dim = arch.num_heads, arch.num_kv_heads, arch.head_dim
        self.qkv_proj = QKVLinear(arch.hidden_size, heads, kv_heads, head_dim, context, bias=arch.qkv_bias)
        self.o_proj = RowLinear(heads * head_dim, arch.hidden_size, context, bias=arch.output_bias)
        self.q_norm = RMSNorm(head_dim, arch.norm_eps, context) if arch.qk_norm else None
        self.k_norm = RMSNorm(head_dim, arch.norm_eps, context) if arch.qk_norm else None
        self.rotate = Rotate() if arch.rotates[layer] else None
        self.head_dim = head_dim
        local_kv_heads = self.qkv_proj.num_kv_heads
        self.attn = Attention(
            f"model.layers.{layer}.self_attn",
            AttentionLayerParams(
                num_heads=self.qkv_proj.num_heads,
                num_kv_heads=local_kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                sliding_window=arch.sliding_windows[layer],
            ),
            FullAttentionSpec(
                block_size=context.block_size,
                num_kv_heads=local_kv_heads,
                head_dim=head_dim,
                dtype=str(context.dtype).removeprefix("torch."),
            ),
        )

    def forward(self, x: torch.Tensor, rotation: Rotation, batch: ForwardBatch) -> torch.Tensor:
        query, key, value = self.qkv_proj(x).split(self.qkv_proj.split_sizes, dim=-1)
        query = query.unflatten(-1, (-1, self.head_dim))  # [num_tokens, num_heads, head_dim]
        key = key.unflatten(-1, (-1, self.head_dim))  # [num_tokens, num_kv_heads, head_dim]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotate is not None:
            query, key = self.rotate(query, key, rotation)
        return self.o_proj(self.attn(query, key, value, batch))


class FeedForward(nn.Module):
    """Gated feed-forward with fused gate and up projections."""

    def __init__(self, arch: DecoderArchitecture, context: ModelContext) -> None:
        super().__init__()
        size, bias = arch.intermediate_size, arch.mlp_bias
        self.gate_up_proj = MergedColumnLinear(arch.hidden_size, (size, size), context, bias=bias)
        self.down_proj = RowLinear(size, arch.hidden_size, context, bias=bias)
        self.act = SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, hidden_size]
        return self.down_proj(self.act(self.gate_up_proj(x)))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after a norm. The residual stream travels beside the output."""

    def __init__(self, arch: DecoderArchitecture, layer: int, context: ModelContext) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(arch.hidden_size, arch.norm_eps, context)
        self.self_attn = SelfAttention(arch, layer, context)
        self.post_attention_layernorm = RMSNorm(arch.hidden_size, arch.norm_eps, context)
        self.mlp = FeedForward(arch, context)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [num_tokens, hidden_size] each
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rotation, batch)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class DecoderStack(nn.Module):
    """The layers that this stage holds, with the embedding before the first and the norm after the last."""

    def __init__(self, arch: DecoderArchitecture, layers: range, context: ModelContext) -> None:
        super().__init__()
        first, last = layers.start == 0, layers.stop == arch.num_layers
        holds_embedding = first or (last and arch.tied)
        self.embed_tokens = VocabEmbedding(arch.vocab_size, arch.hidden_size, context) if holds_embedding else None
        self.layers = nn.ModuleDict({str(i): DecoderLayer(arch, i, context) for i in layers})
        self.norm = RMSNorm(arch.hidden_size, arch.norm_eps, context) if last else None
        self.rotary = RotaryEmbedding(arch.rotary, context.max_model_len, context.device)
        self.is_first = first

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        if self.is_first:
            assert self.embed_tokens is not None
            x = self.embed_tokens(batch.input_ids)  # [num_tokens, hidden_size]
        else:
            x = batch.intermediate["hidden"]
        rotation = self.rotary(batch.positions)
        residual = None
        for layer in self.layers.values():
            x, residual = layer(x, residual, rotation, batch)
        assert residual is not None
        return self.norm(x, residual)[0] if self.norm is not None else x + residual


class Decoder(nn.Module):
    """A `Model` of the Llama shape, or the slice of one that `context.layer_range` names."""

    packed_modules: Mapping[str, tuple[str, ...]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def __init__(self, arch: DecoderArchitecture, context: ModelContext) -> None:
        super().__init__()
        start, stop = context.layer_range or (0, arch.num_layers)
        if not 0 <= start < stop <= arch.num_layers:
            raise ModelLoadError(f"layers {start} to {stop} are no slice of {arch.num_layers} layers")
        self.arch = arch
        self.vocab_size = arch.vocab_size
        self.model = DecoderStack(arch, range(start, stop), context)
        self.lm_head = None
        self.tied_weights: dict[str, str] = {}
        """Checkpoint names that the config says are copies of a parameter."""
        if stop == arch.num_layers:
            tied_to = self.model.embed_tokens if arch.tied else None
            self.lm_head = LMHead(arch.vocab_size, arch.hidden_size, context, tied_to=tied_to)
            if arch.tied:
                self.tied_weights = {"lm_head.weight": "model.embed_tokens.weight"}

    def forward(self, batch: ForwardBatch) -> torch.Tensor:  # [num_tokens, hidden_size]
        return self.model(batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:  # [num_rows, hidden_size] -> [num_rows, vocab_size]
        assert self.lm_head is not None, "only the last pipeline stage has logits"
        return self.lm_head(hidden)

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        return {name: layer.spec for name, layer in attention_layers(self).items()}

    def ignored_weights(self) -> Sequence[str]:
        """Other pipeline stages' weights, and a head that the config declares tied."""
        ignored = [rf"model\.layers\.{i}\..*" for i in range(self.arch.num_layers) if str(i) not in self.model.layers]
        if self.model.embed_tokens is None:
            ignored.append(r"model\.embed_tokens\..*")
        if self.model.norm is None:
            ignored.append(r"model\.norm\..*")
        if self.lm_head is None or self.arch.tied:
            ignored.append(re.escape("lm_head.weight"))
        return ignored


def llama(config: Config, context: ModelContext) -> Decoder:
    return Decoder(describe_llama(config), context)


def mistral(config: Config, context: ModelContext) -> Decoder:
    return Decoder(describe_mistral(config), context)


def qwen2(config: Config, context: ModelContext) -> Decoder:
    return Decoder(describe_qwen2(config), context)


def qwen3(config: Config, context: ModelContext) -> Decoder:
    return Decoder(describe_qwen3(config), context)


def smollm3(config: Config, context: ModelContext) -> Decoder:
    return Decoder(describe_smollm3(config), context)
