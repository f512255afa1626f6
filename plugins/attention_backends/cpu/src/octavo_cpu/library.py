"""The compiled kernels as Python functions. The other side of `kernels/api.h`.

Owns: names and signatures. Must never know: layers, models, when a kernel is called.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import lru_cache
from typing import Any

import torch

from octavo_cpu.build import library

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Numbers of the dtypes in the C interface."""

_POINTERS = "out query key value kv_cache alibi_slopes sinks slot_mapping block_table query_start seq_lens"
_SIZES = (
    "out_stride query_stride key_stride value_stride block_table_stride num_tokens num_seqs num_blocks "
    "num_heads num_kv_heads head_dim block_size sliding_window"
)


class AttentionCall(ctypes.Structure):
    """`OctavoAttention` of `api.h`."""

    _fields_ = (
        *((name, c_void_p) for name in _POINTERS.split()),
        *((name, c_int64) for name in _SIZES.split()),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("dtype", c_int),
    )


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "set_num_threads": (None, [c_int64]),
    "lanes": (c_int64, []),
    "packed_columns": (c_int64, [c_int64]),
    "pack": (None, [c_void_p, c_int, c_int64, c_int64, c_void_p]),
    "linear": (None, [c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p, *[c_int64] * 5]),
    "pack_int8": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "linear_int8": (None, [c_void_p, c_void_p, c_int, *[c_void_p] * 3, *[c_int64] * 5]),
    "attention": (None, [POINTER(AttentionCall)]),
    "rms_norm": (None, [*[c_void_p] * 5, c_int, *[c_int64] * 3, c_float]),
    "silu_and_mul": (None, [c_void_p, c_void_p, c_int, *[c_int64] * 3]),
    "rotate": (None, [*[c_void_p] * 4, c_int, *[c_int64] * 7]),
}


class Kernels:
    """The functions of one library, by their names in `api.h` without `octavo_`."""

    def __init__(self, path: str) -> None:
        handle = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = handle[f"octavo_{name}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.num_lanes: int = handle.octavo_lanes()
        """Numbers in one vector."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: all are set above
        raise AttributeError(name)


def load_kernels(isa: str = "auto") -> Kernels:
    """The kernels for an instruction set, with as many threads as torch. Raises `BuildError` if they cannot be had."""
    kernels = _open(isa)
    kernels.set_num_threads(torch.get_num_threads())
    return kernels


@lru_cache
def _open(isa: str) -> Kernels:
    return Kernels(str(library(isa)))
