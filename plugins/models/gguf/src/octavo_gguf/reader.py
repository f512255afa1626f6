"""Reads the structure of a GGUF file: its key-value fields, and where each tensor's bytes are.

The format is the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian. Every length is checked
against the file before it is used, so a file that is cut off anywhere is one clear error; that, and speed (the
`gguf` library's reader makes several arrays for each of the 100,000 strings of a vocabulary), is why the structure is
read here. Tensor types and their decoding come from the library.

Owns: the bytes of the file. Must never know: architectures, tokenizers, what a field means.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from octavo.errors import ModelLoadError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_NESTING = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the file lists it."""

    name: str
    shape: tuple[int, ...]
    """As torch orders it: slowest dimension first (the file has it the other way round)."""
    kind: gguf.GGMLQuantizationType
    begin: int
    """Its first byte in the file."""
    num_bytes: int


class GGUFFile:
    """An opened GGUF file. Raises `ModelLoadError`, naming the file and the fault, if it is not a whole one."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
        self._position = 0
        self.fields: dict[str, Any] = {}
        """Values by key: numbers, strings, lists of them."""
        self.tensors: dict[str, TensorInfo] = {}
        self._read_structure()

    def tensor(self, name: str) -> np.ndarray:
        """The tensor's values, decoded to floating point, in its `shape`."""
        info = self.tensors[name]
        raw = np.frombuffer(self._bytes, dtype=np.uint8, count=info.num_bytes, offset=info.begin)
        if info.kind == gguf.GGMLQuantizationType.F16:
            return raw.view(np.float16).reshape(info.shape)
        if info.kind == gguf.GGMLQuantizationType.F32:
            return raw.view(np.float32).reshape(info.shape)
        try:
            return gguf.dequantize(raw.reshape(*info.shape[:-1], -1), info.kind).reshape(info.shape)
        except NotImplementedError as error:
            raise self._fault(f"tensor {name} has type {info.kind.name}, which cannot be decoded") from error

    def _fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {what}; download or convert the file again")

    def _take(self, num_bytes: int) -> int:
        """Move on by `num_bytes` and return where they begin."""
        begin = self._position
        if num_bytes > len(self._bytes) - begin:
            raise self._fault(f"the GGUF header is cut off: it goes on after the file's {len(self._bytes)} bytes")
        self._position += num_bytes
        return begin

    def _scalar(self, code: str) -> Any:
        layout = "<" + code
        return struct.unpack_from(layout, self._bytes, self._take(struct.calcsize(layout)))[0]

    def _string(self) -> str:
        length = self._scalar("Q")
        begin = self._take(length)
        try:
            return self._bytes[begin : begin + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fault(f"the text at byte {begin} of the GGUF header is not UTF-8") from error

    def _value(self, kind: int, nesting: int = 0) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or nesting == _MAX_NESTING:
            raise self._fault(f"the GGUF header has a value of unknown type {kind} at byte {self._position}")
        element, count = self._scalar("I"), self._scalar("Q")
        if element not in _SCALARS:
            self._check_count(count, smallest=8)
            return [self._value(element, nesting + 1) for _ in range(count)]
        size = struct.calcsize("<" + _SCALARS[element])
        self._check_count(count, size)
        return list(struct.unpack_from(f"<{count}{_SCALARS[element]}", self._bytes, self._take(count * size)))

    def _check_count(self, count: int, smallest: int) -> None:
        """Refuse a count that the rest of the file cannot hold before anything that long is made."""
        if count * smallest > len(self._bytes) - self._position:
            raise self._fault(f"the GGUF header is cut off: {count} entries do not fit in {len(self._bytes)} bytes")

    def _read_structure(self) -> None:
        if self._bytes[:4] != b"GGUF":
            raise self._fault("not a GGUF file")
        self._take(4)
        version = self._scalar("I")
        if version not in _VERSIONS:
            order = "; it is big-endian" if version & 0xFFFF == 0 else ""
            known = " and ".join(map(str, _VERSIONS))
            raise self._fault(f"GGUF version {version} is not supported, only {known} are{order}")
        num_tensors, num_fields = self._scalar("Q"), self._scalar("Q")
        for _ in range(num_fields):
            key = self._string()
            self.fields[key] = self._value(self._scalar("I"))
        listed = [self._tensor_info() for _ in range(num_tensors)]
        if not listed:
            raise self._fault("it holds no tensors")
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._fault(f"general.alignment is {alignment!r}")
        data = -(-self._position // alignment) * alignment
        for name, shape, kind, offset in listed:
            self._place(name, shape, kind, data + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._scalar("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._fault(f"tensor {name!r} has {num_dims} dimensions")
        shape = tuple(reversed([self._scalar("Q") for _ in range(num_dims)]))
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _place(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> None:
        try:
            tensor_kind = gguf.GGMLQuantizationType(kind)
        except ValueError as error:
            raise self._fault(f"tensor {name} has the unknown type {kind}; a newer gguf library may know it") from error
        block, block_bytes = gguf.GGML_QUANT_SIZES[tensor_kind]
        if name in self.tensors or shape[-1] % block or 0 in shape:
            raise self._fault(f"tensor {name} is listed twice or has an impossible shape {list(shape)}")
        num_bytes = math.prod(shape) // block * block_bytes
        if begin + num_bytes > len(self._bytes):
            raise self._fault(
                f"cut off: tensor {name} ends at byte {begin + num_bytes}, the file has {len(self._bytes)} bytes"
            )
        self.tensors[name] = TensorInfo(name, shape, tensor_kind, begin, num_bytes)
