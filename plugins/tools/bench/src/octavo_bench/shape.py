"""A model's shape, read off its layers, so that every architecture made of `octavo.nn` is covered.

Owns: which parameter counts as what. Must never know: architectures, names of parameters.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from octavo.nn import LMHead, VocabEmbedding, attention_layers
from octavo_bench.work import AttentionShape, ModelShape


def shape_of(model: Any) -> ModelShape:
    """The shape of an `octavo.spec.Model` whose weights are loaded. Every matrix counts as used by every token."""
    heads = [m for m in model.modules() if isinstance(m, LMHead)]
    embeddings = [m for m in model.modules() if isinstance(m, VocabEmbedding) and not isinstance(m, LMHead)]
    head_weights = _distinct([m.weight for m in heads])
    outside = {id(w) for w in [*head_weights, *(m.weight for m in embeddings)]}
    parameters = _distinct(list(model.parameters()))
    body = [p for p in parameters if id(p) not in outside]
    in_head = {id(w) for w in head_weights}
    looked_up = [m.weight for m in embeddings if id(m.weight) not in in_head]
    weight = next((p for p in parameters if p.is_floating_point()), torch.empty(0))
    return ModelShape(
        dtype=str(weight.dtype).removeprefix("torch."),
        device=str(weight.device),
        vocab_size=model.vocab_size,
        body_weights=sum(p.numel() for p in body if p.ndim >= 2),
        body_bytes=sum(map(_num_bytes, body)),
        head_weights=sum(p.numel() for p in head_weights),
        head_bytes=sum(map(_num_bytes, head_weights)),
        embedding_row_bytes=sum(_num_bytes(w) // w.shape[0] for w in looked_up),
        attention=_attention(model),
    )


def _attention(model: Any) -> tuple[AttentionShape, ...]:
    """Layers with one window are one: what they cost adds up."""
    operations: dict[int | None, int] = defaultdict(int)
    kv_bytes: dict[int | None, int] = defaultdict(int)
    for layer in attention_layers(model).values():
        window = layer.params.sliding_window
        operations[window] += 4 * layer.params.num_heads * layer.params.head_dim  # two for q k^T, two for p v
        kv_bytes[window] += layer.spec.page_size_bytes // layer.spec.block_size
    return tuple(AttentionShape(window, operations[window], kv_bytes[window]) for window in operations)


def _distinct(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(p): p for p in parameters}.values())


def _num_bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * parameter.element_size()
