"""Rotary position embedding and its scalings.

Owns: rotary parameters, the table of cosines and sines, the rotation. Must never know: batches, caches, the rest of a
layer. Everything is a pure function of the config, the longest sequence (`max_model_len`) and the position, so a
token is rotated the same way in every batch, chunk and run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo.errors import ModelLoadError

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryParameters:
    """What a model's config says about rotary embedding, in one spelling."""

    rope_type: str
    theta: float
    rotary_dim: int
    """Leading features of each head that are rotated; the others pass unchanged."""
    max_position_embeddings: int
    original_max_position_embeddings: int
    """Length that the model was first trained for."""
    factor: float
    options: Mapping[str, Any]
    """The scaling's other keys, as in the config."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], head_dim: int, default_theta: float = 10000.0, layer_type: str | None = None
    ) -> RotaryParameters:
        """Read `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (transformers 4).

        `layer_type` picks the entry of a config that has one for each kind of layer.
        Raises `ModelLoadError` for a scaling that is unknown or lacks a key.
        """
        options: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        if layer_type is not None and isinstance(options.get(layer_type), Mapping):
            options = dict(options[layer_type])
        rope_type = options.get("rope_type") or options.get("type") or "default"
        if rope_type not in ROPE_TYPES:
            raise ModelLoadError(f"rope scaling {rope_type!r} is not supported; there is: {', '.join(ROPE_TYPES)}")
        wanted = {
            "linear": ("factor",),
            "dynamic": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        }
        missing = [key for key in wanted.get(rope_type, ()) if options.get(key) is None]
        if missing:
            raise ModelLoadError(f"the config's rope scaling {rope_type!r} lacks {', '.join(missing)}")
        partial = _first(options.get("partial_rotary_factor"), config.get("partial_rotary_factor"), 1.0)
        longest = int(_first(config.get("max_position_embeddings"), 2048))
        original = int(
            _first(
                config.get("original_max_position_embeddings"), options.get("original_max_position_embeddings"), longest
            )
        )
        return cls(
            rope_type=rope_type,
            theta=float(_first(options.get("rope_theta"), config.get("rope_theta"), default_theta)),
            rotary_dim=int(head_dim * float(partial)),
            max_position_embeddings=longest,
            original_max_position_embeddings=original,
            factor=float(_first(options.get("factor"), longest / original)),
            options=options,
        )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def inverse_frequencies(parameters: RotaryParameters, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Radians per position of each rotated pair, float32 [rotary_dim / 2], and a factor for the cosines and sines."""
    p = parameters
    theta = _dynamic_theta(p, max_model_len) if p.rope_type == "dynamic" else p.theta
    exponents = torch.arange(0, p.rotary_dim, 2, dtype=torch.float32) / p.rotary_dim
    frequencies = 1.0 / (theta**exponents)
    if p.rope_type == "linear":
        return frequencies / p.factor, 1.0
    if p.rope_type == "llama3":
        return _llama3(p, frequencies), 1.0
    if p.rope_type == "yarn":
        return _yarn(p, frequencies), _yarn_attention_factor(p)
    return frequencies, 1.0


def _dynamic_theta(p: RotaryParameters, max_model_len: int) -> float:
    """The base of dynamic NTK scaling (arXiv:2309.00071, section 3.3), for sequences of up to `max_model_len` tokens.

    The usual definition takes the current length of the batch's longest sequence, so that the same token is
    rotated differently next to other requests, and cached keys disagree with new queries. Here the length is the
    longest that the engine serves: nothing is scaled while that is within `max_position_embeddings`, and beyond it
    every position gets the base that the usual definition has at that full length.
    """
    if max_model_len <= p.max_position_embeddings:
        return p.theta
    stretch = p.factor * max_model_len / p.max_position_embeddings - (p.factor - 1)
    return p.theta * stretch ** (p.rotary_dim / (p.rotary_dim - 2))


def _llama3(p: RotaryParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths are stretched, short ones kept, those between are blended."""
    low, high = float(p.options["low_freq_factor"]), float(p.options["high_freq_factor"])
    rotations = p.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((rotations - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / p.factor + kept * frequencies


def _yarn(p: RotaryParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """YaRN (arXiv:2309.00071, section 3.2): frequencies that turn often are kept, those that turn seldom stretched."""

    def dimension_of(rotations: float) -> float:
        length = p.original_max_position_embeddings
        return p.rotary_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(p.theta))

    low = dimension_of(float(p.options.get("beta_fast") or 32))
    high = dimension_of(float(p.options.get("beta_slow") or 1))
    if p.options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, p.rotary_dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(p.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return stretched * frequencies / p.factor + (1 - stretched) * frequencies


def _yarn_attention_factor(p: RotaryParameters) -> float:
    """YaRN's temperature (section 3.4), as the factor that cosines and sines are multiplied by."""

    def scale(weight: float) -> float:
        return 1.0 if p.factor <= 1 else 0.1 * weight * math.log(p.factor) + 1.0

    given = p.options.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, mscale_all = p.options.get("mscale"), p.options.get("mscale_all_dim")
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)


class RotaryEmbedding(nn.Module):
    """The table of cosines and sines for positions 0 … max_model_len - 1, float32.

    A model looks the batch's positions up once and rotates with the result in every layer. A model transform may set
    `lookup`, which then does that.
    """

    lookup: Callable[[torch.Tensor], Rotation] | None = None

    cos: torch.Tensor  # [max_model_len, rotary_dim / 2]
    sin: torch.Tensor

    def __init__(self, parameters: RotaryParameters, max_model_len: int, device: torch.device) -> None:
        super().__init__()
        frequencies, factor = inverse_frequencies(parameters, max_model_len)
        angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies
        self.register_buffer("cos", (angles.cos() * factor).to(device), persistent=False)
        self.register_buffer("sin", (angles.sin() * factor).to(device), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rotation:  # [num_tokens]
        """Cosines and sines for `apply_rotary`, each [num_tokens, 1, rotary_dim / 2]."""
        if self.lookup is not None:
            return self.lookup(positions)
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x` [num_tokens, num_heads, head_dim]: feature i pairs with i + rotary_dim / 2 (NeoX order).

    Computed in float32, returned in the dtype of `x`.
    """
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), dim=-1)


Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a batch's positions, each [num_tokens, 1, rotary_dim / 2]."""


class Rotate(nn.Module):
    """`apply_rotary` to queries and keys. It has no weights.

    A model transform may set `kernel`, which then does it, and may write over the queries and keys that it is given.
    """

    kernel: Callable[[torch.Tensor, torch.Tensor, Rotation], tuple[torch.Tensor, torch.Tensor]] | None = None

    def forward(
        self,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        rotation: Rotation,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kernel is not None:
            return self.kernel(query, key, rotation)
        return apply_rotary(query, *rotation), apply_rotary(key, *rotation)
