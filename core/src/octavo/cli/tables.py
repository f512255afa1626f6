"""Plain text tables. Owns: column widths and how values are spelt. Must never know: what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def shown(value: Any) -> str:
    """A configuration value as users write it."""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
