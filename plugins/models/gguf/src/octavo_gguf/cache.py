"""Keeps converted models in the user's cache folder, so that the second start need not convert.

An entry is a folder named by the SHA-256 of the GGUF file's content and the version of this plugin's conversion:

    <root>/gguf/<digest>-v1/model.json            configuration, tokenizer, tensor names and shapes
    <root>/gguf/<digest>-v1/float32.safetensors   the tensors in one dtype; read through mmap
    <root>/gguf/seen/<hash of the path>.json      (size, modification time, inode) to digest, to spare the hashing

Files are written under a temporary name and renamed, so that readers and racing writers see whole files or none.
A folder that cannot be written is a reason to go on without, never an error.

Owns: those files. Must never know: what GGUF is, how anything is converted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

logger = logging.getLogger(__name__)

_VERSION = 1
"""Raise it when the conversion changes: entries of other versions are not read."""
_SAFETENSORS_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_SPARE_BYTES = 1 << 30
"""Disk space that is left alone."""
_SETTLED_SECONDS = 2.0
"""A file changed more recently than this may change again within the same time stamp."""

Shapes = Mapping[str, Sequence[int]]


def cache_root() -> Path | None:
    """`OCTAVO_CACHE_DIR`, or `octavo` in the platform's place for caches; None under `OCTAVO_GGUF_CACHE=0`."""
    if os.environ.get("OCTAVO_GGUF_CACHE", "1").lower() in ("0", "false", "no", "off"):
        return None
    if os.environ.get("OCTAVO_CACHE_DIR"):
        return Path(os.environ["OCTAVO_CACHE_DIR"]).expanduser()
    try:
        home = Path.home()
    except RuntimeError:  # no home folder for this user
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "octavo"
    if sys.platform == "darwin":
        return home / "Library/Caches/octavo"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "octavo"


class ModelCache:
    """The cache entry of one file. After the first failure to write it only reads."""

    def __init__(self, path: str, root: Path | None) -> None:
        self._can_write = root is not None
        self._folder: Path | None = None
        if root is not None:
            self._folder = root / "gguf" / f"{self._digest(path, root / 'gguf/seen')}-v{_VERSION}"

    def load_record(self) -> dict[str, Any] | None:
        """What `save_record` kept; None if there is nothing whole."""
        if self._folder is None:
            return None
        record = _read_json(self._folder / "model.json")
        return record if isinstance(record, dict) and record.get("version") == _VERSION else None

    def save_record(self, record: dict[str, Any]) -> None:
        if self._folder is not None:
            self._write_json(self._folder / "model.json", record | {"version": _VERSION})

    def load_tensors(self, dtype: torch.dtype, shapes: Shapes) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The tensors, mapped into memory; None unless exactly those of `shapes` are there, whole, in `dtype`."""
        if self._folder is None:
            return None
        path = self._folder / f"{_name(dtype)}.safetensors"
        if not path.exists():
            return None
        try:
            file = safe_open(path, framework="pt")
            kept = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            whole = {name: (s.get_shape(), s.get_dtype()) for name, s in kept.items()} == {
                name: (list(shape), _SAFETENSORS_DTYPES[dtype]) for name, shape in shapes.items()
            }
        except (SafetensorError, OSError, ValueError) as error:
            logger.warning("the cached weights %s are damaged (%s); converting again", path, error)
            return None
        return ((name, file.get_tensor(name)) for name in shapes) if whole else None

    @contextlib.contextmanager
    def saving_tensors(self, dtype: torch.dtype, shapes: Shapes) -> Iterator[_TensorFile]:
        """A file to add every tensor of `shapes` to, in that order; it counts if the block ends without exception."""
        file = _TensorFile()
        if self._can_write and self._folder is not None and dtype in _SAFETENSORS_DTYPES:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                file.open(self._folder, dtype, shapes)
            except OSError as error:
                self._give_up(error)
        try:
            yield file
            file.commit(f"{_name(dtype)}.safetensors")
        finally:
            file.close()
            if file.failure is not None:
                self._give_up(file.failure)

    def _digest(self, path: str, seen: Path) -> str:
        """SHA-256 of the file's content in hexadecimal."""
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        memo = seen / (hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:32] + ".json")
        known = _read_json(memo)
        if isinstance(known, dict) and known.get("stamp") == stamp and isinstance(known.get("digest"), str):
            return known["digest"]
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if time.time() - status.st_mtime > _SETTLED_SECONDS:
            self._write_json(memo, {"stamp": stamp, "digest": digest})
        return digest

    def _write_json(self, path: Path, value: object) -> None:
        if not self._can_write:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(value, file)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._can_write:
            self._can_write = False
            logger.warning(
                "going on without the cache of converted models (%s); set OCTAVO_CACHE_DIR to move it", error
            )


class _TensorFile:
    """A safetensors file that is written one tensor at a time, so that no model need fit into memory twice.

    Format: https://github.com/huggingface/safetensors#format. Without `open` it takes everything and keeps nothing.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._file: Any = None

    def open(self, folder: Path, dtype: torch.dtype, shapes: Shapes) -> None:
        """Raises OSError if there is no room for all of it."""
        header: dict[str, Any] = {}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
            header[name] = {"dtype": _SAFETENSORS_DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)  # so that tensors are aligned
        if shutil.disk_usage(folder).free < end + _SPARE_BYTES:
            raise OSError(f"{folder} has no room for {end} bytes")
        self._file = tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False)  # noqa: SIM115 (see close)
        self._write(len(text).to_bytes(8, "little") + text)

    def add(self, tensor: torch.Tensor) -> None:
        self._write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def commit(self, name: str) -> None:
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # or a power cut may leave the right name on missing data
            self._file.close()
            os.replace(self._file.name, Path(self._file.name).parent / name)
            self._file = None
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """Remove what was not committed."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # closing flushes, onto a disk that may be full
                self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = None

    def _write(self, data: Any) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self.failure = error
                self.close()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
