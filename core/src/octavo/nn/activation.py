"""Activations of gated feed-forward layers.

Owns: `SiluAndMul`. Must never know: how its input was projected.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class SiluAndMul(nn.Module):
    """`silu(gate) * up`, where the input holds gate and up side by side (arXiv:2002.05202, SwiGLU)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, 2 * size] -> [num_tokens, size]
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up
