"""Keeps converted models in the user's cache folder, so that the second start need not convert.

An entry is a folder named by the SHA-256 of the GGUF file's content and the version of this plugin's conversion:

    <root>/gguf/<digest>-v1/model.json            configuration, tokenizer, tensor names and shapes
    <root>/gguf/<digest>-v1/float32.safetensors   the tensors in one dtype; read through mmap
    <root>/gguf/<digest>-v1/float32.json          their fingerprint
    <root>/gguf/seen/<hash of the path>.json      (size, modification time, inode) to digest, to spare the hashing

Files are written under a temporary name and renamed, so that readers and racing writers see whole files or none.
A folder that cannot be written is a reason to go on without, never an error. A damaged file is as good as none: each
JSON file is sealed with a checksum, so any change of it is noticed; of the tensors only samples are checked
(`tensor_file` says what that finds, and what not).

Owns: where entries are, and when to go on without. Must never know: what GGUF is, how anything is converted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cache_folder import cache_folder
from octavo_gguf.sealed import DamagedFileError, read_sealed, write_sealed

if TYPE_CHECKING:
    import torch

    from octavo_gguf.tensor_file import Shapes, TensorFile

logger = logging.getLogger(__name__)

_VERSION = 1
"""Raise it when the conversion changes: entries of other versions are not read."""
_SETTLED_SECONDS = 2.0
"""A file changed more recently than this may change again within the same time stamp."""
_ABANDONED_SECONDS = 86400.0
"""A temporary file untouched for longer was left by a process that was killed."""


def cache_root() -> Path | None:
    """The user's cache folder; None if it is switched off, or, with a warning, if it has no place."""
    try:
        return cache_folder()
    except RuntimeError as error:
        _warn_going_without(error)
        return None


class ModelCache:
    """The cache entry of one file. After the first failure it only reads."""

    def __init__(self, path: str, root: Path | None) -> None:
        self._can_write = root is not None
        self._folder: Path | None = None
        if root is not None:
            seen = root / "gguf/seen"
            self._folder = root / "gguf" / f"{self._digest(path, seen)}-v{_VERSION}"
            _remove_abandoned(seen)
            _remove_abandoned(self._folder)

    def load_record(self) -> dict[str, Any] | None:
        """What `save_record` kept; None if there is nothing whole."""
        return None if self._folder is None else self._read(self._folder / "model.json")

    def save_record(self, record: dict[str, Any]) -> None:
        if self._folder is not None:
            self._write(self._folder / "model.json", record)

    def load_tensors(self, dtype: torch.dtype, shapes: Shapes) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The tensors, mapped into memory; None unless exactly those of `shapes` are there, undamaged, in `dtype`."""
        from octavo_gguf.tensor_file import read_tensors  # brings in torch, which records do without

        if self._folder is None:
            return None
        try:
            return read_tensors(self._folder, dtype, shapes)
        except DamagedFileError as error:
            logger.warning("%s; converting again", error)
        except OSError as error:
            self._give_up(error)
        return None

    @contextlib.contextmanager
    def saving_tensors(self, dtype: torch.dtype, shapes: Shapes) -> Generator[TensorFile, None, None]:
        """A file to add every tensor of `shapes` to, in that order; it counts if the block ends without exception."""
        from octavo_gguf.tensor_file import TensorFile

        file = TensorFile()
        try:
            if self._can_write and self._folder is not None:
                try:
                    file.open(self._folder, dtype, shapes)
                except OSError as error:
                    self._give_up(error)
            yield file
            file.commit()
        finally:
            file.close()
            if file.failure is not None:
                self._give_up(file.failure)

    def _digest(self, path: str, seen: Path) -> str:
        """SHA-256 of the file's content in hexadecimal. Raises OSError if that cannot be read."""
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        memo = seen / (hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32] + ".json")
        known = self._read(memo)
        if isinstance(known, dict) and known.get("stamp") == stamp:
            digest = str(known.get("digest"))
            if re.fullmatch("[0-9a-f]{64}", digest):  # it becomes part of a path
                return digest
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time() - status.st_mtime > _SETTLED_SECONDS:
            self._write(memo, {"stamp": stamp, "digest": digest})
        return digest

    def _read(self, path: Path) -> Any:
        try:
            return read_sealed(path)
        except DamagedFileError as error:
            logger.warning("%s; making it again", error)
        except OSError as error:
            self._give_up(error)
        return None

    def _write(self, path: Path, value: object) -> None:
        if self._can_write:
            try:
                write_sealed(path, value)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._can_write:
            self._can_write = False
            _warn_going_without(error)


def _remove_abandoned(folder: Path) -> None:
    oldest = time.time() - _ABANDONED_SECONDS
    with contextlib.suppress(OSError):  # nothing there, or not ours to tidy
        for file in list(folder.glob("*.tmp")):
            with contextlib.suppress(OSError):  # already gone, or may not be removed: nothing waits for it
                if file.lstat().st_mtime < oldest:
                    file.unlink()


def _warn_going_without(error: Exception) -> None:
    logger.warning(
        "going on without the cache of converted models (%s); set OCTAVO_CACHE_DIR to move it, or to nothing to "
        "switch it off",
        error,
    )
