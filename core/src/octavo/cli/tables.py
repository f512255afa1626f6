"""Plain text tables. Owns: column widths and how values are spelt. Must never know: what is in them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; on a terminal the last one wraps to the terminal's width."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = max(30, shutil.get_terminal_size().columns - indent) if sys.stdout.isatty() else 0
    printed = []
    for *cells, last in lines:
        start = "".join(cell.ljust(width + 2) for cell, width in zip(cells, widths, strict=True))
        wrapped = textwrap.wrap(last, room) if room else [last]
        printed += [f"{start}{wrapped[0] if wrapped else ''}".rstrip(), *(" " * indent + more for more in wrapped[1:])]
    return "\n".join(printed)


def shown(value: Any) -> str:
    """A configuration value as users write it."""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "empty"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
