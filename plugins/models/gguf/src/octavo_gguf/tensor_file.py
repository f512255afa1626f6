"""One file of tensors that is written once, then mapped into memory, and a cheap check that it is still the same.

`<name>.safetensors` (https://github.com/huggingface/safetensors#format) has a sealed `<name>.json` beside it: its size
and a SHA-256 of its header and of up to 256 blocks of 4 KiB of its data: the first, the last, and others at even
distances.

Detected on opening: any change of the size, the header (names, shapes, dtypes, offsets) or a sampled block, so a file
that is cut off, overwritten, or zeroed over a long stretch; up to 1 MB of data, any change at all.
NOT detected: a change between the samples, such as one flipped bit. With 540 MB of data they are 2.1 MB apart and
cover 0.2 % of it; hashing all of it would cost more at each start than the cache saves.

Owns: those two files. Must never know: where they are kept, where the tensors come from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from octavo_gguf.sealed import DamagedFileError, read_sealed, write_sealed

_SAFETENSORS_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_SPARE_BYTES = 1 << 30
"""Disk space that is left alone."""
_BLOCK_BYTES = 4096
_MAX_STEPS = 255

Shapes = Mapping[str, Sequence[int]]


def read_tensors(folder: Path, dtype: torch.dtype, shapes: Shapes) -> Iterator[tuple[str, torch.Tensor]] | None:
    """The tensors of `shapes` in `dtype`, mapped into memory; None if they were never kept.

    Raises DamagedFileError, and OSError if a file cannot be read.
    """
    known = read_sealed(folder / f"{_name(dtype)}.json")
    path = folder / f"{_name(dtype)}.safetensors"
    if known is None or not os.path.lexists(path):
        return None
    if _fingerprint(path) != known:
        raise DamagedFileError(f"{path} is damaged")
    try:
        file = safe_open(path, framework="pt")
        kept = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        whole = {name: (s.get_shape(), s.get_dtype()) for name, s in kept.items()} == {
            name: (list(shape), _SAFETENSORS_DTYPES[dtype]) for name, shape in shapes.items()
        }
    except SafetensorError as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error
    if not whole:
        raise DamagedFileError(f"{path} is damaged (it holds other tensors)")
    return ((name, file.get_tensor(name)) for name in shapes)


class TensorFile:
    """A safetensors file that is written one tensor at a time, so that no model need fit into memory twice.

    Without `open` it takes everything and keeps nothing. After the first error, in `failure`, likewise.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._name = ""
        self._file: Any = None

    def open(self, folder: Path, dtype: torch.dtype, shapes: Shapes) -> None:
        """Take the tensors of `shapes`, in that order. Raises OSError if there is no room for all of them."""
        if dtype not in _SAFETENSORS_DTYPES:
            return
        header: dict[str, Any] = {}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + dtype.itemsize * torch.Size(shape).numel()
            header[name] = {"dtype": _SAFETENSORS_DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 64)  # so that tensors are aligned
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < end + _SPARE_BYTES:
            raise OSError(f"{folder} has no room for {end} bytes")
        self._name = _name(dtype)
        self._file = tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False)  # noqa: SIM115 (see close)
        self._write(len(text).to_bytes(8, "little") + text)

    def add(self, tensor: torch.Tensor) -> None:
        self._write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def commit(self) -> None:
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())  # or a power cut may leave the right name on missing data
            self._file.close()
            temporary = Path(self._file.name)
            # The fingerprint comes first: tensors that have none were never whole.
            write_sealed(temporary.with_name(f"{self._name}.json"), _fingerprint(temporary))
            os.replace(temporary, temporary.with_name(f"{self._name}.safetensors"))
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


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size and sampled checksum of a safetensors file, as the module's docstring describes them."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        length = file.read(8)
        begin = 8 + min(int.from_bytes(length, "little"), size)  # damage can make it any number
        checksum = hashlib.sha256(length + file.read(begin - 8))
        step = max(_BLOCK_BYTES, -(-(size - begin) // _MAX_STEPS))
        for offset in [*range(begin, size, step), max(begin, size - _BLOCK_BYTES)]:
            file.seek(offset)
            checksum.update(file.read(_BLOCK_BYTES))
    return {"size": size, "sha256": checksum.hexdigest()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
