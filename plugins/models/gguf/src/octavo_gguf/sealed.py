"""JSON files that carry a checksum of their own content, so that a damaged one is noticed before it is used.

    {"sha256": "<of the bytes of the value>", "value": <the value>}

The checksum guards against damage, not against forgery.

Owns: that format, and replacing such a file in one go. Must never know: what is kept in one.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


class DamagedFileError(ValueError):
    """A file's content is not what was written; the message names the file."""


def read_sealed(path: Path) -> Any:
    """The value in the file, None if there is no file. Raises DamagedFileError, and OSError if it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    text = data[len(_seal(b"")) - 1 : -1]
    if data != _seal(text):
        raise DamagedFileError(f"{path} is damaged")
    return json.loads(text)


def write_sealed(path: Path, value: object) -> None:
    """Replace the file, making its folder if need be. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(_seal(json.dumps(value).encode()))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _seal(text: bytes) -> bytes:
    return b'{"sha256": "%s", "value": %s}' % (hashlib.sha256(text).hexdigest().encode(), text)
