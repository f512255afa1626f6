"""What tells the families apart, as one frozen description.

Owns: the reading of each family's config, with transformers' defaults. Must never know: torch modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ModelLoadError
from octavo.nn import RotaryParameters

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderArchitecture:
    """A decoder of the Llama shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rotary: RotaryParameters
    tied: bool
    """Whether the head shares the embedding's weight."""
    qkv_bias: bool
    output_bias: bool
    """Bias on attention's output projection."""
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm on each query and key head before rotation."""
    sliding_windows: tuple[int | None, ...]
    """By layer; None: full attention."""
    rotates: tuple[bool, ...]
    """By layer; False: no position embedding (NoPE)."""


def _number(config: Config, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"the config's {key} is {value!r}, not a positive whole number")
    return value


def _describe(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = False,
    head_dim: int | None = None,
    theta: float = 10000.0,
    sliding_windows: tuple[int | None, ...] | None = None,
    rotates: tuple[bool, ...] | None = None,
) -> DecoderArchitecture:
    """The common keys, and what the family says about the rest; `tied`, `head_dim` and `theta` are its defaults."""
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"hidden_act {activation!r} is not supported by octavo-llama; there is: silu")
    num_layers, num_heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    hidden_size = _number(config, "hidden_size")
    kv_heads = num_heads if config.get("num_key_value_heads") is None else _number(config, "num_key_value_heads")
    size = config.get("head_dim") or head_dim or hidden_size // num_heads
    for what, by_layer in (("sliding windows", sliding_windows), ("NoPE layers", rotates)):
        if by_layer is not None and len(by_layer) != num_layers:
            raise ModelLoadError(f"the config tells {what} for {len(by_layer)} layers, but has {num_layers}")
    return DecoderArchitecture(
        vocab_size=_number(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_number(config, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=size,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rotary=RotaryParameters.from_config(config, size, theta),
        tied=bool(config.get("tie_word_embeddings", tied)),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        sliding_windows=sliding_windows or (None,) * num_layers,
        rotates=rotates or (True,) * num_layers,
    )


def _windows_by_type(config: Config) -> tuple[int | None, ...] | None:
    """Windows of families whose `use_sliding_window` switches them on for some layers."""
    window = config.get("sliding_window", 4096)
    if not config.get("use_sliding_window") or window is None:
        return None
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        kinds = ["sliding_attention" if i >= first else "" for i in range(_number(config, "num_hidden_layers"))]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def describe_llama(config: Config) -> DecoderArchitecture:
    bias = bool(config.get("attention_bias"))
    return _describe(config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")))


def describe_mistral(config: Config) -> DecoderArchitecture:
    windows = (config.get("sliding_window", 4096),) * _number(config, "num_hidden_layers")
    return _describe(config, sliding_windows=windows)


def describe_qwen2(config: Config) -> DecoderArchitecture:
    return _describe(config, qkv_bias=True, sliding_windows=_windows_by_type(config))


def describe_qwen3(config: Config) -> DecoderArchitecture:
    bias = bool(config.get("attention_bias"))
    return _describe(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        head_dim=128,
        sliding_windows=_windows_by_type(config),
    )


def describe_smollm3(config: Config) -> DecoderArchitecture:
    num_layers = _number(config, "num_hidden_layers")
    rotates = config.get("no_rope_layers")  # 1 where a layer *has* rotary embedding, whatever the name says
    if rotates is None:
        interval = config.get("no_rope_layer_interval", 4)
        rotates = [(i + 1) % interval != 0 for i in range(num_layers)]
    kinds = config.get("layer_types") or ["" if has_rope else "sliding_attention" for has_rope in rotates]
    bias = bool(config.get("attention_bias"))
    return _describe(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        tied=True,
        theta=2000000.0,
        rotates=tuple(bool(has_rope) for has_rope in rotates),
        sliding_windows=_windows_by_type({"sliding_window": None, **config, "layer_types": kinds}),
    )
