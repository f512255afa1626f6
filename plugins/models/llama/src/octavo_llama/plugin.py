"""What this plugin offers. Imports no torch: the models are imported when one is built."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import ModelEntry

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}


@hookimpl
def octavo_register_models() -> list[ModelEntry]:
    """One entry for each architecture that is a decoder of the Llama shape."""
    return [ModelEntry(name=name, factory=f"octavo_llama.decoder:{family}") for name, family in ARCHITECTURES.items()]
