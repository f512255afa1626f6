"""A model as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from octavo.hookspecs import hookimpl
from octavo.nn import Attention
from octavo.spec import AttentionLayerParams, FullAttentionSpec, ModelEntry
from octavo.testing import ModelSuite

VOCAB, SIZE, LENGTH = 50, 8, 128


class Model(torch.nn.Module):
    """One layer of attention between an embedding with learnt positions and a head."""

    packed_modules = {}  # noqa: RUF012
    vocab_size = VOCAB

    def __init__(self, config, context):
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.empty(VOCAB, SIZE))
        self.positions = torch.nn.Parameter(torch.empty(LENGTH, SIZE))
        self.head = torch.nn.Linear(SIZE, VOCAB, bias=False)
        params = AttentionLayerParams(num_heads=2, num_kv_heads=2, head_dim=SIZE // 2, scale=0.5)
        spec = FullAttentionSpec(
            block_size=context.block_size, num_kv_heads=2, head_dim=SIZE // 2, dtype=str(context.dtype)[6:]
        )
        self.attention = Attention("attention", params, spec)

    def where(self, batch):
        return batch.positions

    def forward(self, batch):
        x = self.tokens[batch.input_ids] + self.positions[self.where(batch)]
        return x + self.attention(x, x, x, batch)

    def logits(self, hidden):
        return self.head(hidden)

    def kv_cache_specs(self):
        return {"attention": self.attention.spec}

    def ignored_weights(self):
        return ()


class OffInChunks(Model):
    """Counts positions from the first one of the chunk, and one too many behind it."""

    def where(self, batch):
        first = int(batch.positions.min())
        return batch.positions + (1 if first > 0 else 0)


class BatchBlind(Model):
    """Takes the place in the batch for the position."""

    def where(self, batch):
        return torch.arange(len(batch.positions)) % LENGTH


class Forgetful(Model):
    """Loads a weight that it never uses."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.unused = torch.nn.Parameter(torch.empty(3))


class PlainSuite(ModelSuite):
    def write(self, folder, case):
        generator = torch.Generator().manual_seed(0)
        shapes = {"tokens": (VOCAB, SIZE), "positions": (LENGTH, SIZE), "head.weight": (VOCAB, SIZE)}
        if self.plugin.model is Forgetful:
            shapes["unused"] = (3,)
        tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        save_file(tensors, folder / "model.safetensors")
        config = {"architectures": ["Plain"], "vocab_size": VOCAB, "max_position_embeddings": LENGTH}
        (folder / "config.json").write_text(json.dumps(config))

        def reference(token_ids):
            x = tensors["tokens"][token_ids] + tensors["positions"][: len(token_ids)]
            heads = x.view(-1, 2, SIZE // 2).transpose(0, 1)
            attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True, scale=0.5)
            return (x + attended.transpose(0, 1).reshape(-1, SIZE)) @ tensors["head.weight"].T

        return reference


class Plugin:
    def __init__(self, model):
        self.model = model

    @hookimpl
    def octavo_register_models(self):
        return [ModelEntry(name="Plain", factory=self.model)]


class TestRight(PlainSuite):
    plugin = Plugin(Model)


class TestOffInChunks(PlainSuite):
    plugin = Plugin(OffInChunks)


class TestBatchBlind(PlainSuite):
    plugin = Plugin(BatchBlind)


class TestForgetful(PlainSuite):
    plugin = Plugin(Forgetful)
