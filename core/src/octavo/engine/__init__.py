"""The engine: built from a configuration and extensions, stepped by its caller. Public: `LLM`, `LLMEngine`."""

from octavo.engine.build import build_engine
from octavo.engine.engine import LLMEngine, OutputKind
from octavo.engine.llm import LLM

__all__ = ["LLM", "LLMEngine", "OutputKind", "build_engine"]
