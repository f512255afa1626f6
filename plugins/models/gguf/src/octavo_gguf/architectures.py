"""From GGUF's names to Hugging Face's: configuration keys and tensor names of each architecture.

To add one, add an `Architecture` to `ARCHITECTURES`. Key names are those of the GGUF specification; which rows a
converter reorders is a property of the architecture (llama.cpp, convert_hf_to_gguf.py).

Owns: the table. Must never know: tokenizers, the cache, how bytes are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.errors import ModelLoadError
from octavo_gguf.reader import GGUFFile
from octavo_gguf.rope import rope_scaling

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DERIVED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
"""Tensors that follow from the configuration."""
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one GGUF architecture is called and shaped in Hugging Face's terms."""

    class_name: str
    model_type: str
    is_permuted: bool = False
    """Whether the rows of q and k are in the order of rotary pairs (x0, x1) instead of halves (x0, x_d/2)."""
    extra: Callable[[dict[str, Any], GGUFFile], dict[str, Any]] = field(default=lambda config, file: {})
    """Keys that this architecture alone has."""


def _llama_extra(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    extra = {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
    window = file.fields.get("llama.attention.sliding_window")
    if window:  # a Mistral: the same weights, with a window
        extra |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return extra


def _smollm3_extra(config: dict[str, Any], file: GGUFFile) -> dict[str, Any]:
    interval = 4  # llama.cpp has it built in; the file does not say
    layers = range(1, config["num_hidden_layers"] + 1)
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "no_rope_layer_interval": interval,
        "no_rope_layers": [int(layer % interval != 0) for layer in layers],  # 1 means: with rotary embedding
    }


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", is_permuted=True, extra=_llama_extra),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", extra=lambda config, file: {"use_sliding_window": False}),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        "qwen3",
        extra=lambda config, file: {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "use_sliding_window": False},
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", is_permuted=True, extra=_smollm3_extra),
}


def architecture_of(file: GGUFFile) -> Architecture:
    """Raises `ModelLoadError` for one that this plugin does not map, naming those that it does."""
    name = file.fields.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelLoadError(f"{file.path}: octavo-gguf does not map the architecture {name!r}, only {known}")
    if file.fields.get(f"{name}.expert_count"):
        raise ModelLoadError(f"{file.path}: octavo-gguf does not map mixtures of experts")
    return ARCHITECTURES[name]


def model_config(file: GGUFFile) -> dict[str, Any]:
    """The configuration as Hugging Face's `config.json` would hold it."""
    architecture = architecture_of(file)
    prefix = file.fields["general.architecture"]

    def get(key: str, *default: Any) -> Any:
        value = file.fields.get(f"{prefix}.{key}", *default)
        if isinstance(value, list):  # one value for each layer
            if len(set(value)) != 1:
                raise ModelLoadError(f"{file.path}: octavo-gguf needs the same {prefix}.{key} in every layer")
            value = value[0]
        if value is None and not default:
            raise ModelLoadError(f"{file.path}: the GGUF header has no {prefix}.{key}; convert the model again")
        return value

    if "token_embd.weight" not in file.tensors:
        raise ModelLoadError(f"{file.path}: there is no tensor token_embd.weight; convert the model again")
    num_heads = get("attention.head_count")
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "hidden_act": "silu",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": get("attention.head_count_kv", num_heads),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        "rope_theta": get("rope.freq_base", 10_000.0),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if not isinstance(num_heads, int) or num_heads < 1 or not isinstance(config["num_key_value_heads"], int):
        raise ModelLoadError(f"{file.path}: impossible head counts in the GGUF header; convert the model again")
    config["head_dim"] = get("attention.key_length", config["hidden_size"] // num_heads)
    config["rope_scaling"] = rope_scaling(file, prefix, config)
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = file.fields.get(f"tokenizer.ggml.{name}_token_id")
    return config | architecture.extra(config, file)


def tensor_names(file: GGUFFile) -> dict[str, str]:
    """Hugging Face's name of each tensor to the file's name of it."""
    names = {}
    for name in file.tensors:
        if _DERIVED.fullmatch(name):
            continue
        match = _NAME.fullmatch(name)
        stem = (_TOP_LEVEL if match[1] is None else _IN_LAYER).get(match[2]) if match else None
        if match is None or stem is None:
            raise ModelLoadError(f"{file.path}: octavo-gguf does not know the tensor {name}")
        layer = "" if match[1] is None else f"model.layers.{match[1]}."
        names[f"{layer}{stem}.{match[3]}"] = name
    return names


def in_hugging_face_order(
    file: GGUFFile, name: str, values: np.ndarray, architecture: Architecture, config: dict[str, Any]
) -> np.ndarray:
    """`values` of the file's tensor `name`, with rows back in the order that the model's own checkpoint has."""
    match = _NAME.fullmatch(name)
    if not architecture.is_permuted or match is None or match[2] not in ("attn_q", "attn_k"):
        return values
    num_heads = config["num_attention_heads" if match[2] == "attn_q" else "num_key_value_heads"]
    if len(values) % (2 * num_heads):
        raise ModelLoadError(f"{file.path}: tensor {name} has {len(values)} rows, which {num_heads} heads do not share")
    pairs = values.reshape(num_heads, len(values) // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
