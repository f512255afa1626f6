"""The seam between a model and whichever attention backend serves it.

Owns: the binding of a layer to its backend and KV cache. Must never know: how attention is computed, or blocks.
"""

from __future__ import annotations

import torch
from torch import nn

from octavo.spec import AttentionBackend, AttentionLayerParams, ForwardBatch, KVCacheSpec, Model


class Attention(nn.Module):
    """One attention layer, by a name that is unique in its model. It has no weights.

    The model states what the layer needs (`params`, with the heads of this rank; `spec`); whoever runs the model
    chooses a backend, allocates the cache and calls `bind` once before the first forward.
    """

    def __init__(self, name: str, params: AttentionLayerParams, spec: KVCacheSpec) -> None:
        super().__init__()
        self.name, self.params, self.spec = name, params, spec
        self.backend: AttentionBackend | None = None
        self.kv_cache: torch.Tensor | None = None
        self.group_id = 0

    def bind(self, backend: AttentionBackend, kv_cache: torch.Tensor, group_id: int) -> None:
        """Serve this layer with `backend` over `kv_cache`; metadata comes from `batch.attention[group_id]`."""
        # Plain attributes, no buffer: a KV cache is no part of the model's state and stays put when the model moves.
        self.backend, self.kv_cache, self.group_id = backend, kv_cache, group_id

    def forward(
        self,
        query: torch.Tensor,  # [num_tokens, num_heads * head_dim] or [num_tokens, num_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads * head_dim] or [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # like key
        batch: ForwardBatch,
        sinks: torch.Tensor | None = None,  # [num_heads]
    ) -> torch.Tensor:  # [num_tokens, num_heads * head_dim]
        assert self.backend is not None, f"attention layer {self.name} is not bound to a backend"
        assert self.kv_cache is not None
        params = self.params
        out = self.backend.forward(
            params,
            query.view(-1, params.num_heads, params.head_dim),
            key.view(-1, params.num_kv_heads, params.head_dim),
            value.view(-1, params.num_kv_heads, params.head_dim),
            self.kv_cache,
            batch.attention[self.group_id],
            sinks,
        )
        return out.reshape(-1, params.num_heads * params.head_dim)


def attention_layers(model: Model) -> dict[str, Attention]:
    """Every attention layer of a model by name, in the order of the modules."""
    layers: dict[str, Attention] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            assert module.name not in layers, f"two attention layers are called {module.name}"
            layers[module.name] = module
    return layers
