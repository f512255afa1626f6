"""What this plugin offers. Owns: the registration. Must never know: torch, safetensors."""

from __future__ import annotations

import os

from octavo.hookspecs import hookimpl
from octavo.spec import WeightFormatEntry


def is_model_folder(path: str) -> bool:
    """Whether the folder at `path` holds a model, or a part of one; one with GGUF files alone is left to others."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    has_weights = any(name.endswith(".safetensors") for name in names)
    has_gguf = any(name.endswith(".gguf") for name in names)
    has_index = any(name.endswith(".safetensors.index.json") for name in names)
    described = "config.json" in names or "tokenizer.json" in names
    return has_weights or ((has_index or described) and not has_gguf)


@hookimpl
def octavo_register_weight_formats() -> list[WeightFormatEntry]:
    return [
        WeightFormatEntry(
            name="safetensors",
            can_read=is_model_folder,
            factory="octavo_safetensors.source:SafetensorsSource",
            description="a folder with config.json, tokenizer.json and *.safetensors",
        )
    ]
