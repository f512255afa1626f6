"""Tiny random models of real architectures, with a tokenizer, as folders in the safetensors format.

Owns: their configs, tensors and tokenizer. Must never know: how they are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layers": [1, 0]},
}
"""What sets each family's config apart."""

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")
MERGES = (("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("Ġ", "the"))
EOS_TOKEN_ID = SPECIAL_TOKENS.index("</s>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(folder: Path, family: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """Write a model of `family` and its tokenizer into `folder`; `changes` go into its config.

    The vocabulary is padded beyond the tokenizer's, as many real ones are. Same seed, same weights.
    """
    tokenizer_json = byte_tokenizer_json()
    num_tokens = len(json.loads(tokenizer_json)["model"]["vocab"])
    config = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": num_tokens + 11,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
        **FAMILIES[family],
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_tensors(config, family, seed), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_TOKEN_ID}))
    (folder / "tokenizer.json").write_text(tokenizer_json)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": CHAT_TEMPLATE}))
    return folder


def tiny_tensors(config: Mapping[str, Any], family: str, seed: int) -> dict[str, torch.Tensor]:
    """Random float32 tensors with Hugging Face's names, large enough for the model to have opinions."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        projections = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        shapes |= {f"{layer}.self_attn.{name}.weight": (size, hidden) for name, size in projections.items()}
        if family == "qwen2":
            shapes |= {f"{layer}.self_attn.{name}.bias": (size,) for name, size in projections.items()}
        if family == "qwen3":
            shapes |= {f"{layer}.self_attn.{name}.weight": (dim,) for name in ("q_norm", "k_norm")}
        shapes |= {
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = (
            1 + 0.1 * noise if "norm" in name else noise * (1.5 if len(shape) == 1 else 2 * shape[-1] ** -0.5)
        )
    return tensors


def byte_tokenizer_json(
    special_tokens: Sequence[str] = SPECIAL_TOKENS, merges: Sequence[tuple[str, str]] = MERGES
) -> str:
    """Byte-level BPE whose tokens are special tokens, the 256 bytes, and what `merges` makes of them, in this order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    first = len(special_tokens)
    vocabulary = {character: first + i for i, character in enumerate(characters)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary) + first
    specials = {token: i for i, token in enumerate(special_tokens)}
    tokenizer = Tokenizer(models.BPE(vocab={**specials, **vocabulary}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer.to_str()
