"""How a layer's parameters are made and filled, whole or in shards.

A layer that holds a shard has `load_weight(parameter, tensor, shard=None)`, which takes the *whole* tensor of the
checkpoint and keeps its rank's part. For a fused layer `shard` says which of the tensors that it is made of comes;
None is one that is fused already. Layers without `load_weight` are filled as they are.

Owns: these functions. Must never know: names of tensors or where they come from.
"""

from __future__ import annotations

import torch
from torch import nn

from octavo.errors import ConfigError, ModelLoadError
from octavo.spec import ModelContext


def new_parameter(context: ModelContext, *shape: int) -> nn.Parameter:
    """An unfilled parameter of the context's dtype, on its device."""
    return nn.Parameter(torch.empty(shape, dtype=context.dtype, device=context.device), requires_grad=False)


def share_of(size: int, world_size: int, what: str) -> int:
    """`size / world_size`. Raises `ConfigError` if it is not whole."""
    if size % world_size:
        raise ConfigError(f"{what} ({size}) cannot be cut into {world_size} equal shards; use another parallel size")
    return size // world_size


def check_shape(tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Raises `ModelLoadError` if the checkpoint's tensor is not of the shape that the config implies."""
    if tuple(tensor.shape) != expected:
        raise ModelLoadError(f"has shape {list(tensor.shape)}, but the config implies {list(expected)}")


def fill_parameter(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a tensor into a parameter, or a part of one, of exactly that shape.

    Raises `ModelLoadError` for another shape, and for integers where floating point is wanted: a cast would turn
    quantised weights into garbage.
    """
    check_shape(tensor, tuple(target.shape))
    if target.is_floating_point() and not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelLoadError(
            f"holds {kind}, not floating point numbers; quantised weights need a plugin that reads them"
        )
    with torch.no_grad():
        target.copy_(tensor)
