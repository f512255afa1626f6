"""Octavo: an LLM inference engine whose features are plugins.

`LLM`, `SamplingParams` and `StructuredOutputsParams` are what most programs need, `AsyncLLM` what servers do. A prompt
is a text, token ids, or a mapping: `TextPrompt` or `TokensPrompt`. Importing all these imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.request import TextPrompt, TokensPrompt
from octavo.sampling_params import SamplingParams
from octavo.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.engine import LLM, AsyncLLM, LLMEngine

__all__ = ["LLM", "AsyncLLM", "LLMEngine", "SamplingParams", "StructuredOutputsParams", "TextPrompt", "TokensPrompt"]


def __getattr__(name: str) -> Any:
    if name in ("LLM", "AsyncLLM", "LLMEngine"):
        import octavo.engine

        return getattr(octavo.engine, name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
