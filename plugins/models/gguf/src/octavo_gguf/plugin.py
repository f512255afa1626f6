"""What this plugin offers. Owns: the registration. Must never know: torch, gguf."""

from __future__ import annotations

import os

from octavo.hookspecs import hookimpl
from octavo.spec import WeightFormatEntry


def is_gguf(path: str) -> bool:
    """Whether the file at `path` begins with the four bytes `GGUF`, whatever its name."""
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for its writer
            return False
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


@hookimpl
def octavo_register_weight_formats() -> list[WeightFormatEntry]:
    return [
        WeightFormatEntry(
            name="gguf",
            can_read=is_gguf,
            factory="octavo_gguf.source:GGUFSource",
            description="one GGUF file with weights, configuration and tokenizer",
        )
    ]
