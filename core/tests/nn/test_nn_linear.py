"""Sharded layers against whole ones: the ranks' parts, put together by hand."""

from __future__ import annotations

import pytest
import torch

from octavo.errors import ConfigError, ModelLoadError
from octavo.nn import ColumnLinear, Linear, MergedColumnLinear, QKVLinear, RowLinear, fill_parameter


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def test_linear_is_the_whole_product(make_context):
    layer = Linear(6, 4, make_context(), bias=True)
    weight, bias, x = random(4, 6), random(4), random(3, 6)
    fill_parameter(layer.weight, weight)
    fill_parameter(layer.bias, bias)
    assert torch.allclose(layer(x), x @ weight.T + bias)
    assert layer.weight.shape == (4, 6)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_column_parts_join_to_the_whole(world_size, make_context):
    weight, bias, x = random(8, 6), random(8), random(3, 6)
    parts = []
    for rank in range(world_size):
        layer = ColumnLinear(6, 8, make_context(rank, world_size), bias=True)
        layer.load_weight("weight", weight)
        layer.load_weight("bias", bias)
        parts.append(layer(x))
        assert layer.weight.numel() == weight.numel() // world_size
    assert torch.allclose(torch.cat(parts, -1), x @ weight.T + bias, atol=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_row_parts_sum_to_the_whole_and_the_bias_counts_once(world_size, make_context):
    weight, bias, x = random(4, 6), random(4), random(3, 6)
    total = torch.zeros(3, 4)
    for rank in range(world_size):
        layer = RowLinear(6, 4, make_context(rank, world_size), bias=True)
        layer.load_weight("weight", weight)
        layer.load_weight("bias", bias)
        total += layer(x.chunk(world_size, -1)[rank])
    # Every rank of this test adds the bias, because none of them sees the others' sum.
    assert torch.allclose(total - (world_size - 1) * bias, x @ weight.T + bias, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_merged_parts_join_part_by_part(world_size, fused, make_context):
    sizes = (4, 8)
    weights, x = [random(size, 6) for size in sizes], random(3, 6)
    parts: list[list[torch.Tensor]] = [[], []]
    for rank in range(world_size):
        layer = MergedColumnLinear(6, sizes, make_context(rank, world_size))
        if fused:
            layer.load_weight("weight", torch.cat(weights))
        else:
            for i in (1, 0):  # in any order
                layer.load_weight("weight", weights[i], i)
        for i, part in enumerate(layer(x).split(layer.split_sizes, -1)):
            parts[i].append(part)
    for weight, part in zip(weights, parts, strict=True):
        assert torch.allclose(torch.cat(part, -1), x @ weight.T, atol=1e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "world_size"), [(4, 2, 1), (4, 2, 2), (4, 2, 4), (8, 1, 4), (6, 3, 3)])
def test_each_rank_has_the_kv_heads_that_its_query_heads_read(heads, kv_heads, world_size, make_context):
    head_dim = 2
    # Every row of a head's weight is the head's number, so that the output tells which heads a rank holds.
    q, k, v = (
        torch.arange(n).repeat_interleave(head_dim)[:, None].float() * scale
        for n, scale in ((heads, 1), (kv_heads, 10), (kv_heads, 100))
    )
    seen_queries = []
    for rank in range(world_size):
        layer = QKVLinear(1, heads, kv_heads, head_dim, make_context(rank, world_size))
        for i, weight in enumerate((q, k, v)):
            layer.load_weight("weight", weight, i)
        query, key, value = layer(torch.ones(1, 1)).split(layer.split_sizes, -1)
        mine = query[0, ::head_dim].int().tolist()
        kv_mine = (key[0, ::head_dim] / 10).int().tolist()
        assert (value[0, ::head_dim] / 100).int().tolist() == kv_mine
        group = layer.num_heads // layer.num_kv_heads
        assert [kv_mine[i // group] for i in range(len(mine))] == [h // (heads // kv_heads) for h in mine]
        seen_queries += mine
    assert seen_queries == list(range(heads))


@pytest.mark.parametrize(("heads", "kv_heads", "world_size"), [(4, 2, 3), (5, 2, 1), (6, 3, 2), (2, 1, 4)])
def test_heads_that_cannot_be_dealt_out_are_refused(heads, kv_heads, world_size, make_context):
    with pytest.raises(ConfigError):
        QKVLinear(4, heads, kv_heads, 2, make_context(0, world_size))


def test_sizes_that_do_not_divide_are_refused(make_context):
    with pytest.raises(ConfigError, match="5"):
        ColumnLinear(4, 5, make_context(0, 2))
    with pytest.raises(ConfigError, match="5"):
        RowLinear(5, 4, make_context(0, 2))


@pytest.mark.parametrize("world_size", [1, 2])
def test_shapes_are_those_of_the_whole_tensor(world_size, make_context):
    context = make_context(0, world_size)
    column, row, merged = ColumnLinear(6, 8, context), RowLinear(6, 4, context), MergedColumnLinear(6, (4, 4), context)
    for layer, shape, shard in (
        (column, (8, 5), None),
        (column, (16, 6), None),
        (column, (8,), None),
        (row, (4, 3), None),
        (row, (8, 6), None),
        (merged, (4, 6), None),
        (merged, (8, 6), 0),
        (merged, (2, 6), 1),
    ):
        with pytest.raises(ModelLoadError, match=r"has shape .*implies"):
            layer.load_weight("weight", torch.zeros(shape), shard)


def test_numbers_are_cast_but_integers_are_not(make_context):
    layer = Linear(2, 2, make_context(dtype=torch.bfloat16))
    fill_parameter(layer.weight, torch.full((2, 2), 1.5))
    assert layer.weight.tolist() == [[1.5, 1.5], [1.5, 1.5]]
    with pytest.raises(ModelLoadError, match="holds int8"):
        fill_parameter(layer.weight, torch.ones(2, 2, dtype=torch.int8))
