"""Normalisation.

Owns: `RMSNorm` (arXiv:1910.07467). Must never know: where in a model it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import nn

from octavo.nn.weights import new_parameter
from octavo.spec import ModelContext


class RMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last dimension; computed in float32, multiplied in the input's dtype.

    With a `residual`, `x + residual` is normalised, and returned too: the residual stream of the next block.
    A model transform may set `kernel`, which then does it all, with the arguments and results of `forward`.
    """

    kernel: Callable[[torch.Tensor, torch.Tensor | None], Any] | None = None

    def __init__(self, size: int, eps: float, context: ModelContext) -> None:
        super().__init__()
        self.weight = new_parameter(context, size)
        self.eps = eps

    @overload
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...
    @overload
    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # [..., size]
        if self.kernel is not None:
            return self.kernel(x, residual)
        if residual is not None:
            x = x + residual
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed = self.weight * (wide * scale).to(x.dtype)
        return normed if residual is None else (normed, x)
