"""How commands get a model: with a word while it loads, and Ctrl-C that works meanwhile.

Owns: `load_llm`. Must never know: what the model is for.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.interrupts import exit_on_interrupt
from octavo.config import EngineConfig

if TYPE_CHECKING:
    from octavo.engine import LLM


def load_llm(config: EngineConfig, plugins: Sequence[Any] = ()) -> LLM:
    """Build the engine, with `plugins` besides the installed ones. Raises what `LLM` raises."""
    notice = "loading the model …"
    if sys.stderr.isatty():
        print(notice, end="\r", file=sys.stderr, flush=True)
    # What is imported lives as long as the process; looking for garbage in it takes a fifth of the start.
    gc.disable()
    try:
        with exit_on_interrupt():
            from octavo.engine import LLM

            return LLM.from_config(config, plugins)
    finally:
        gc.freeze()
        gc.enable()
        if sys.stderr.isatty():
            print(" " * len(notice), end="\r", file=sys.stderr, flush=True)
