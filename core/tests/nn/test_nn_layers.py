"""Norm, activation, embedding and the attention seam against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.errors import ModelLoadError
from octavo.nn import Attention, LMHead, RMSNorm, SiluAndMul, VocabEmbedding, attention_layers
from octavo.spec import AttentionLayerParams, ForwardBatch, FullAttentionSpec


def test_rms_norm_is_its_definition(make_context):
    norm = RMSNorm(5, 1e-3, make_context())
    norm.weight.copy_(torch.tensor([1.0, 2.0, -1.0, 0.5, 3.0]))
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for row, out in zip(x.double().tolist(), norm(x).tolist(), strict=True):
        rms = math.sqrt(sum(v * v for v in row) / 5 + 1e-3)
        assert out == pytest.approx([v / rms * w for v, w in zip(row, norm.weight.tolist(), strict=True)], abs=1e-5)


def test_rms_norm_adds_the_residual_and_returns_it(make_context):
    norm = RMSNorm(5, 1e-6, make_context())
    norm.weight.fill_(1.0)
    x, residual = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    normed, stream = norm(x, residual)
    assert torch.equal(stream, x + residual)
    assert torch.equal(normed, norm(x + residual))


def test_rms_norm_computes_in_float32(make_context):
    norm = RMSNorm(2, 0.0, make_context(dtype=torch.float16))
    norm.weight.fill_(1.0)
    out = norm(torch.tensor([[600.0, 600.0]], dtype=torch.float16))  # squares overflow float16
    assert out.dtype == torch.float16
    assert out.tolist() == [[1.0, 1.0]]


def test_silu_and_mul():
    gate, up = [-2.0, 0.0, 3.0], [1.0, 5.0, -2.0]
    expected = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
    assert SiluAndMul()(torch.tensor([gate + up]))[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_vocabulary_shards_join_to_the_whole(world_size, make_context):
    vocab_size = 10  # neither 3 nor 4 divides it
    table = torch.randn(vocab_size, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([0, 9, 3, 3, 7])
    hidden = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    total, logits = torch.zeros(5, 4), []
    for rank in range(world_size):
        embedding = VocabEmbedding(vocab_size, 4, make_context(rank, world_size))
        embedding.weight.fill_(torch.nan)  # what nobody fills must not stay
        embedding.load_weight("weight", table)
        assert not embedding.weight.isnan().any()
        total += embedding(ids)
        head = LMHead(vocab_size, 4, make_context(rank, world_size), tied_to=embedding)
        assert head.weight is embedding.weight
        logits.append(head(hidden))
    assert torch.equal(total, table[ids])
    joined = torch.cat(logits, -1)[:, :vocab_size]
    assert torch.allclose(joined, hidden @ table.T, atol=1e-6)


def test_a_separate_head_has_its_own_weight(make_context):
    head = LMHead(10, 4, make_context())
    head.load_weight("weight", torch.ones(10, 4))
    assert head(torch.ones(1, 4)).tolist() == [[4.0] * 10]
    with pytest.raises(ModelLoadError, match=r"\[11, 4\].*\[10, 4\]"):
        head.load_weight("weight", torch.ones(11, 4))


class RecordingBackend:
    """Returns the queries doubled and keeps what it was called with."""

    def forward(self, layer, query, key, value, kv_cache, metadata, sinks=None):
        self.seen = (layer, query, key, value, kv_cache, metadata, sinks)
        return query * 2


def make_attention(name: str = "a") -> Attention:
    params = AttentionLayerParams(num_heads=4, num_kv_heads=2, head_dim=3, scale=1.0)
    return Attention(name, params, FullAttentionSpec(block_size=16, num_kv_heads=2, head_dim=3, dtype="float32"))


@pytest.mark.parametrize("flat", [True, False])
def test_attention_hands_heads_to_its_backend(flat):
    layer, backend, cache = make_attention(), RecordingBackend(), torch.zeros(7)
    layer.bind(backend, cache, 1)
    query, key, value = torch.arange(60.0).view(5, 12), torch.arange(30.0).view(5, 6), torch.ones(5, 6)
    batch = ForwardBatch(input_ids=torch.zeros(5), positions=torch.arange(5), attention=["other", "mine"])
    sinks = torch.ones(4)
    if flat:
        out = layer(query, key, value, batch, sinks)
    else:
        out = layer(query.view(5, 4, 3), key.view(5, 2, 3), value.view(5, 2, 3), batch, sinks)
    assert torch.equal(out, query * 2)
    seen = backend.seen
    assert seen[0] is layer.params
    assert torch.equal(seen[1], query.view(5, 4, 3))
    assert torch.equal(seen[2], key.view(5, 2, 3))
    assert torch.equal(seen[3], value.view(5, 2, 3))
    assert seen[4] is cache
    assert seen[5] == "mine"
    assert seen[6] is sinks


def test_attention_takes_slices_of_a_fused_projection():
    layer = make_attention()
    layer.bind(RecordingBackend(), torch.zeros(1), 0)
    fused = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    batch = ForwardBatch(input_ids=torch.zeros(5), positions=torch.arange(5), attention=[None])
    assert torch.equal(layer(*fused.split((12, 6, 6), -1), batch), fused[:, :12] * 2)


def test_attention_layers_are_found_in_order_and_have_no_weights():
    model = torch.nn.Sequential(make_attention("z"), torch.nn.Sequential(make_attention("a")), make_attention("m"))
    assert list(attention_layers(model)) == ["z", "a", "m"]
    model[0].bind(RecordingBackend(), torch.zeros(3), 0)
    assert not model.state_dict()


def test_two_layers_of_one_name_are_a_mistake():
    with pytest.raises(AssertionError, match="called a"):
        attention_layers(torch.nn.Sequential(make_attention("a"), make_attention("a")))
