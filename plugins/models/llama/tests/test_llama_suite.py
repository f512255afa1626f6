"""The laws of models, asked of every family; transformers gives the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.testing import ModelSuite
from octavo_llama import plugin

SIZES = {
    "vocab_size": 250,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": None,
}
CASES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {"sliding_window": 7},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "Qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "SmolLM3": {"no_rope_layer_interval": 2},
}


class TestLlama(ModelSuite):
    plugin = plugin
    cases = tuple(CASES)

    def write(self, folder: Path, case: str) -> Callable[[Sequence[int]], torch.Tensor]:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = getattr(transformers, f"{case}Config")(**SIZES, **CASES[case], attn_implementation="eager")
        model = getattr(transformers, f"{case}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(folder)
        return lambda token_ids: model(torch.tensor([list(token_ids)])).logits[0]
