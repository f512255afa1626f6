"""Linear layers: whole, cut by output (column), cut by input (row), and fused.

Weights are kept as `[out, in]`. A tensor-parallel pair is a column layer, whose outputs stay on their rank, and a row
layer, which sums over the ranks (Megatron-LM, arXiv:1909.08053, section 3).
Owns: the layers and which part of a tensor is theirs. Must never know: what the features mean.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from octavo.errors import ConfigError, ModelLoadError
from octavo.nn.weights import check_shape, fill_parameter, new_parameter, share_of
from octavo.spec import ModelContext


class LinearKernel(Protocol):
    """The product with one layer's weight, in whatever form it keeps that."""

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x` [num_tokens, in] to [num_tokens, out]; `bias` [out]."""
        ...


class Projection(nn.Module):
    """Anything that multiplies by a weight [out, in]. A model transform may take the product over."""

    weight: nn.Parameter
    kernel: LinearKernel | None = None

    def take_over(self, kernel: LinearKernel) -> None:
        """Let `kernel` do the product from now on, and give the weight back."""
        self.kernel = kernel
        self.register_parameter("weight", None)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x @ weight.T + bias`: [num_tokens, in] to [num_tokens, out]."""
        return functional.linear(x, self.weight, bias) if self.kernel is None else self.kernel(x, bias)


class Linear(Projection):
    """`x @ weight.T + bias`, the same on every rank."""

    def __init__(self, in_size: int, out_size: int, context: ModelContext, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = new_parameter(context, out_size, in_size)
        self.bias = new_parameter(context, out_size) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, in] -> [num_tokens, out]
        return self.multiply(x, self.bias)


class MergedColumnLinear(Projection):
    """Several column layers over the same input as one product.

    The output holds this rank's part of each of them, one after the other: `split_sizes` says how to cut it.
    """

    def __init__(self, in_size: int, out_sizes: tuple[int, ...], context: ModelContext, *, bias: bool = False) -> None:
        super().__init__()
        world_size, rank = context.communicator.world_size, context.communicator.rank
        self._set_up(in_size, out_sizes, (world_size,) * len(out_sizes), (rank,) * len(out_sizes), context, bias)

    def _set_up(
        self,
        in_size: int,
        out_sizes: tuple[int, ...],
        num_parts: tuple[int, ...],
        part: tuple[int, ...],
        context: ModelContext,
        bias: bool,
    ) -> None:
        """Shard i is cut into `num_parts[i]` equal parts, of which this rank keeps number `part[i]`."""
        self.in_size, self.out_sizes = in_size, out_sizes
        self._part = part
        self.split_sizes = tuple(
            share_of(size, parts, "the output size of a layer")
            for size, parts in zip(out_sizes, num_parts, strict=True)
        )
        self.weight = new_parameter(context, sum(self.split_sizes), in_size)
        self.bias = new_parameter(context, sum(self.split_sizes)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, in] -> [num_tokens, sum(split_sizes)]
        return self.multiply(x, self.bias)

    def load_weight(self, parameter: str, tensor: torch.Tensor, shard: int | None = None) -> None:
        """Keep this rank's part of checkpoint tensor number `shard`; None: the tensor is already fused."""
        tail = (self.in_size,) if parameter == "weight" else ()
        if shard is None:
            check_shape(tensor, (sum(self.out_sizes), *tail))
            for i, piece in enumerate(tensor.split(self.out_sizes)):
                self.load_weight(parameter, piece, i)
            return
        check_shape(tensor, (self.out_sizes[shard], *tail))
        size, start = self.split_sizes[shard], sum(self.split_sizes[:shard])
        whole: torch.Tensor = getattr(self, parameter)
        fill_parameter(whole[start : start + size], tensor.narrow(0, self._part[shard] * size, size))


class ColumnLinear(MergedColumnLinear):
    """A layer cut by output: each rank has `out / world_size` of the outputs."""

    def __init__(self, in_size: int, out_size: int, context: ModelContext, *, bias: bool = False) -> None:
        super().__init__(in_size, (out_size,), context, bias=bias)


class QKVLinear(MergedColumnLinear):
    """The query, key and value projections of attention as one product, cut by heads.

    With more ranks than KV heads, each KV head is held by several ranks, next to the query heads that read it.
    Raises `ConfigError` if the heads cannot be dealt out evenly.
    """

    def __init__(
        self,
        in_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        context: ModelContext,
        *,
        bias: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        world_size, rank = context.communicator.world_size, context.communicator.rank
        kv_parts = min(world_size, num_kv_heads)
        if num_heads % num_kv_heads or world_size % kv_parts:
            raise ConfigError(
                f"{num_heads} heads with {num_kv_heads} KV heads cannot be dealt out to {world_size} ranks"
            )
        self.num_heads = share_of(num_heads, world_size, "the number of attention heads")
        self.num_kv_heads = share_of(num_kv_heads, kv_parts, "the number of KV heads")
        kv_part = rank // (world_size // kv_parts)
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        self._set_up(
            in_size,
            (q_size, kv_size, kv_size),
            (world_size, kv_parts, kv_parts),
            (rank, kv_part, kv_part),
            context,
            bias,
        )


class RowLinear(Projection):
    """A layer cut by input: each rank multiplies its part of the features, the results are summed.

    The bias is held by all ranks and added once, after the sum.
    """

    def __init__(self, in_size: int, out_size: int, context: ModelContext, *, bias: bool = False) -> None:
        super().__init__()
        self._communicator = context.communicator
        self.in_size, self.out_size = in_size, out_size
        local_size = share_of(in_size, context.communicator.world_size, "the input size of a layer")
        self.weight = new_parameter(context, out_size, local_size)
        self.bias = new_parameter(context, out_size) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, in / world_size] -> [num_tokens, out]
        if self._communicator.world_size == 1:
            return self.multiply(x, self.bias)
        out = self._communicator.all_reduce(self.multiply(x, None))
        return out if self.bias is None else out + self.bias

    def load_weight(self, parameter: str, tensor: torch.Tensor, shard: int | None = None) -> None:
        """Keep this rank's part of the whole tensor."""
        if shard is not None:
            raise ModelLoadError("belongs to a fused layer, but the model's layer is not fused")
        if parameter == "bias":
            assert self.bias is not None
            fill_parameter(self.bias, tensor)
            return
        check_shape(tensor, (self.out_size, self.in_size))
        size = self.weight.shape[1]
        fill_parameter(self.weight, tensor.narrow(1, self._communicator.rank * size, size))
