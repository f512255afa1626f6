"""Activations of gated feed-forward layers.

Owns: `SiluAndMul`. Must never know: how its input was projected.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class SiluAndMul(nn.Module):
    """`silu(gate) * up`, where the input holds gate and up side by side (arXiv:2002.05202, SwiGLU).

    A model transform may set `kernel`, which then does it.
    """

    kernel: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, 2 * size] -> [num_tokens, size]
        if self.kernel is not None:
            return self.kernel(x)
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up
