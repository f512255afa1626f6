"""The compiled kernels as Python functions. The other side of `kernels/api.h`.

Owns: names and signatures, the log of calls. Must never know: layers, models, when a kernel is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Generator
from ctypes import POINTER, c_double, c_int64, c_void_p
from functools import lru_cache
from typing import Any

import torch

from octavo_cpu.build import BuildError, library, supported_isas

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Numbers of the dtypes in the C interface."""
INT8, INT8_WEIGHT_ONLY, INT4 = 2, 3, 4
"""Further ones that weights can have."""

Fields = list[tuple[str, Any]]


def _fields(pointers: str, sizes: str, numbers: str = "") -> Fields:
    kinds = ((pointers, c_void_p), (sizes, c_int64), (numbers, c_double))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class AttentionCall(ctypes.Structure):
    _fields_ = _fields(
        "out query key value kv_cache alibi_slopes sinks slot_mapping block_table query_start seq_lens",
        "out_stride query_stride key_stride value_stride block_table_stride num_tokens num_seqs num_blocks "
        "num_heads num_kv_heads head_dim block_size sliding_window dtype",
        "scale soft_cap",
    )


class LinearCall(ctypes.Structure):
    _fields_ = _fields(
        "out x weight scales bias", "out_dtype dtype weight_dtype num_rows num_columns depth out_stride x_stride"
    )


class RMSNormCall(ctypes.Structure):
    _fields_ = _fields("out sum x residual weight", "dtype num_rows size group x_stride", "eps")


class SiluAndMulCall(ctypes.Structure):
    _fields_ = _fields("out x", "dtype num_rows size x_stride")


class RotateCall(ctypes.Structure):
    _fields_ = _fields(
        "query key cos sin", "dtype num_tokens num_heads num_kv_heads head_dim half query_stride key_stride"
    )


class GatherCall(ctypes.Structure):
    _fields_ = _fields("out table indices", "num_rows row_bytes")


class KeptCall(ctypes.Structure):
    """`OctavoCall`."""

    _fields_ = _fields("", "kernel") + _fields("arguments", "")


class Patch(ctypes.Structure):
    """`OctavoPatch`."""

    _fields_ = _fields("field", "base constant per_token")


Call = AttentionCall | LinearCall | RMSNormCall | SiluAndMulCall | RotateCall | GatherCall

_KERNELS: dict[str, type[Call]] = {
    "attention": AttentionCall,
    "linear": LinearCall,
    "rms_norm": RMSNormCall,
    "silu_and_mul": SiluAndMulCall,
    "rotate": RotateCall,
    "gather": GatherCall,
}
"""In the order of `OCTAVO_CALL_…`."""


class CallLog(threading.local):
    """The calls of kernels that this thread makes, while somebody wants to know."""

    calls: list[tuple[Kernel, Call]] | None = None


_log = CallLog()


@contextlib.contextmanager
def logged_calls() -> Generator[list[tuple[Kernel, Call]]]:
    """All calls that this thread makes from here on, as copies."""
    before, _log.calls = _log.calls, []
    try:
        yield _log.calls
    finally:
        _log.calls = before


class Kernel:
    """One kernel; it is called with its structure."""

    __slots__ = ("_run", "number")

    def __init__(self, run: Any, number: int) -> None:
        self._run, self.number = run, number

    def __call__(self, call: Call) -> None:
        if _log.calls is not None:
            _log.calls.append((self, type(call).from_buffer_copy(call)))
        self._run(ctypes.byref(call))


class Kernels:
    """One library, by its names in `api.h` without `octavo_`."""

    attention: Kernel
    linear: Kernel
    rms_norm: Kernel
    silu_and_mul: Kernel
    rotate: Kernel
    gather: Kernel

    def __init__(self, path: str) -> None:
        handle = ctypes.CDLL(path)

        def function(name: str, *arguments: Any, result: Any = None) -> Any:
            found = handle[f"octavo_{name}"]
            found.restype, found.argtypes = result, arguments
            return found

        for number, (name, structure) in enumerate(_KERNELS.items()):
            setattr(self, name, Kernel(function(name, POINTER(structure)), number))
        self.set_num_threads = function("set_num_threads", c_int64)
        self.packed_columns = function("packed_columns", c_int64, result=c_int64)
        self.packed_bytes = function("packed_bytes", c_int64, c_int64, c_int64, result=c_int64)
        self.pack = function("pack", c_void_p, c_int64, c_int64, c_int64, c_void_p)
        self.pack_int4 = function("pack_int4", c_void_p, c_void_p, c_int64, c_int64, c_void_p)
        self.advise_huge_pages = function("advise_huge_pages", c_void_p, c_int64)
        self.replay = function("replay", c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64)
        self.num_lanes: int = function("lanes", result=c_int64)()
        """Numbers in one vector."""


def load_kernels(isa: str = "auto") -> Kernels:
    """The kernels for an instruction set, with as many threads as torch. Raises `BuildError` if they cannot be had."""
    found = supported_isas()
    if sys.platform == "linux" and isa not in ("auto", *found):
        raise BuildError(f"this processor has no {isa}, only {', '.join(found)}; set plugins.cpu.isa to one of these")
    kernels = _open(isa)
    kernels.set_num_threads(torch.get_num_threads())
    return kernels


@lru_cache
def _open(isa: str) -> Kernels:
    return Kernels(str(library(isa)))
