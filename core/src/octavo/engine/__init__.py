"""The engine: built from a configuration and extensions. Public: `LLM`, `AsyncLLM`, `LLMEngine`."""

from octavo.engine.async_llm import AsyncLLM
from octavo.engine.build import build_engine
from octavo.engine.engine import LLMEngine
from octavo.engine.llm import LLM
from octavo.engine.output_processor import OutputKind

__all__ = ["LLM", "AsyncLLM", "LLMEngine", "OutputKind", "build_engine"]
