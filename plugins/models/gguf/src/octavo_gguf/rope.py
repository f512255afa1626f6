"""How a GGUF file says that rotary frequencies are scaled, in Hugging Face's terms (`rope_scaling`).

Owns: that translation. Must never know: tensors of the model, tokenizers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo.errors import ModelLoadError
from octavo_gguf.reader import GGUFFile

_YARN_KEYS = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attn_factor": "attention_factor",
}


def rope_scaling(file: GGUFFile, prefix: str, config: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of the configuration; None if frequencies are not scaled.

    Raises `ModelLoadError` for a scaling that has no counterpart.
    """
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file, config)
    base = f"{prefix}.rope.scaling"
    kind = file.fields.get(f"{base}.type", "none")
    factor = file.fields.get(f"{base}.factor") or file.fields.get(f"{prefix}.rope.scale_linear")
    if kind == "linear" or (kind == "none" and f"{base}.type" not in file.fields and factor not in (None, 0.0, 1.0)):
        return {"rope_type": "linear", "factor": factor}
    if kind == "none":
        return None
    if kind != "yarn" or not factor:
        raise ModelLoadError(f"{file.path}: octavo-gguf does not map rope scaling {kind!r} with factor {factor}")
    scaling = {"rope_type": "yarn", "factor": factor}
    original = file.fields.get(f"{base}.original_context_length")
    if original:
        scaling["original_max_position_embeddings"] = original
    present = {ours: file.fields.get(f"{base}.{theirs}") for theirs, ours in _YARN_KEYS.items()}
    return scaling | {name: value for name, value in present.items() if value is not None}


def llama3_divisors(head_dim: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """What each frequency is divided by under Llama 3.1's scaling, [head_dim / 2] (its `apply_scaling`)."""
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1 - kept) / scaling["factor"] + kept)


def _llama3(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters behind the divisors that the file lists: it has no keys for them."""
    divisors = file.tensor("rope_freqs.weight").astype(np.float64).reshape(-1)
    factor = round(float(divisors.max()), 4)
    if factor == 1.0:
        return None
    for original in (8192, 4096, 16384, 32768, 65536, 131072):
        scaling = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        expected = llama3_divisors(config["head_dim"], config["rope_theta"], scaling)
        if expected.shape == divisors.shape and np.allclose(expected, divisors, rtol=1e-3):
            return scaling
    raise ModelLoadError(f"{file.path}: rope_freqs.weight does not follow Llama 3's scaling, the one octavo-gguf maps")
