"""Where results go: lines for people, JSON for programs, files.

Owns: standard output and error, the errors of writing. Must never know: what the results are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError


def publish(lines: Sequence[str], record: Mapping[str, Any], json_file: str | None) -> None:
    """Print `lines`, and write `record` to `json_file`.

    `-` is standard output, and the lines go to stderr then. Raises `ConfigError` if the file cannot be written.
    """
    print("\n".join(lines), file=sys.stderr if json_file == "-" else sys.stdout)
    if json_file is None:
        return
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
    if json_file == "-":
        print(encoded)
    else:
        write_file("--json", json_file, encoded + "\n")


def write_file(option: str, path: str, text: str) -> None:
    """Raises `ConfigError` that names the option if the file cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path!r}: {error}") from error


def tell(what: str) -> None:
    """A word for people who wait; a file or a pipe gets none."""
    if sys.stderr.isatty():
        print(f"\r{what:<32}", end="\r", file=sys.stderr, flush=True)


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
