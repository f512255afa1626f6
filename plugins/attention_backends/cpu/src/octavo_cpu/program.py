"""A list of kernel calls that can be done for any number of tokens.

Every field of every call is `base + constant + per_token * num_tokens`, where the base is nothing, a buffer of the pass
itself, or something that each step brings along. Buffers share one piece of memory as far as they are not used at
the same time.

Owns: the fit of passes of different sizes to that form, the memory, the replay. Must never know: models, layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from octavo_cpu.library import Call, KeptCall, Kernel, Kernels, Patch

_ALIGNMENT = 64
"""Bytes: a line of the cache."""


_NOTHING, _MEMORY, _OUTPUT, _NUM_OWN = range(4)
"""The bases that a program has of itself."""


class Refused(Exception):
    """Why passes cannot be replayed, in one clause."""


class Buffer(NamedTuple):
    """The base of what a pass allocates itself: the `index`-th allocation."""

    index: int


class Slot(NamedTuple):
    """What a field of a call was: so many bytes beyond `base`; None: a number."""

    base: Hashable
    value: int


@dataclass(frozen=True, slots=True)
class Pass:
    """The calls of one forward pass."""

    num_tokens: int
    calls: Sequence[tuple[Kernel, Call, Sequence[Slot]]]
    buffer_bytes: Sequence[int]
    output: Buffer
    hidden: torch.Tensor
    """The result, [num_tokens, size]."""


@dataclass(frozen=True, slots=True)
class _Field:
    """Slot `index` of call `call`."""

    call: int
    index: int
    base: Hashable
    constant: int
    per_token: int


def words_of(call: Call) -> ctypes.Array[ctypes.c_int64]:
    """The fields of a call as numbers; a view of its memory."""
    return (ctypes.c_int64 * (ctypes.sizeof(call) // 8)).from_buffer(call)


def fit(passes: Sequence[Pass], kernels: Kernels) -> Program:
    """The program that makes all `passes`, three of different sizes. Raises `Refused` if there is none."""
    first = passes[0]
    for other in passes[1:]:
        if [kernel for kernel, *_ in other.calls] != [kernel for kernel, *_ in first.calls]:
            raise Refused("which kernels are called depends on the number of tokens")
    fields = [
        _fit_field(call, index, passes) for call, (_, _, slots) in enumerate(first.calls) for index in range(len(slots))
    ]
    return Program(first, [f for f in fields if f.base is not None or f.per_token], _sizes_per_token(passes), kernels)


def _fit_field(call: int, index: int, passes: Sequence[Pass]) -> _Field:
    slots = [p.calls[call][2][index] for p in passes]
    line = _line([p.num_tokens for p in passes], [slot.value for slot in slots])
    if line is None or len({slot.base for slot in slots}) != 1:
        structure = passes[0].calls[call][1]
        what = f"{structure._fields_[index][0]} in call {call}, a {type(structure).__name__}"
        raise Refused(f"{what}, is neither constant nor grows with the number of tokens")
    return _Field(call, index, slots[0].base, *line)


def _line(xs: Sequence[int], ys: Sequence[int]) -> tuple[int, int] | None:
    """(a, b) with y = a + b x for all points."""
    b = (ys[1] - ys[0]) // (xs[1] - xs[0])
    a = ys[0] - b * xs[0]
    return (a, b) if all(y == a + b * x for x, y in zip(xs, ys, strict=True)) else None


def _sizes_per_token(passes: Sequence[Pass]) -> list[int]:
    """Bytes per token of each buffer, in whole lines."""
    if len({len(p.buffer_bytes) for p in passes}) != 1:
        raise Refused("what is allocated depends on the number of tokens")
    sizes = []
    for grown in zip(*(p.buffer_bytes for p in passes), strict=True):
        line = _line([p.num_tokens for p in passes], grown)
        if line is None or line[0] != 0:
            raise Refused("a buffer does not grow with the number of tokens")
        sizes.append(-(-line[1] // _ALIGNMENT) * _ALIGNMENT)
    return sizes


def _place(fields: Sequence[_Field], sizes: Sequence[int]) -> tuple[dict[Buffer, int], int]:
    """Where each buffer begins, in bytes per token, and what all need: first fit among those in use then."""
    uses: dict[Buffer, list[int]] = {}
    for field in fields:
        if isinstance(field.base, Buffer):
            uses.setdefault(field.base, []).append(field.call)
    placed: dict[Buffer, int] = {}
    end = 0
    for buffer in sorted(uses, key=lambda b: min(uses[b])):
        start = 0
        neighbours = [b for b in placed if max(uses[b]) >= min(uses[buffer])]
        for other in sorted(neighbours, key=placed.__getitem__):
            if start + sizes[buffer.index] <= placed[other]:
                break
            start = max(start, placed[other] + sizes[other.index])
        placed[buffer] = start
        end = max(end, start + sizes[buffer.index])
    return placed, end


class Program:
    """Calls that are kept, and the memory that they work in. Not thread-safe."""

    def __init__(self, first: Pass, fields: Sequence[_Field], sizes: Sequence[int], kernels: Kernels) -> None:
        self._replay = kernels.replay
        self._size, self._dtype = first.hidden.shape[1], first.hidden.dtype
        inner = [f for f in fields if f.base != first.output]
        places, self._bytes_per_token = _place(inner, sizes)
        self._memory = torch.empty(0, dtype=torch.uint8)
        outer = dict.fromkeys(f.base for f in fields if f.base is not None and not isinstance(f.base, Buffer))
        self._outer: dict[Hashable, int] = {base: _NUM_OWN + i for i, base in enumerate(outer)}
        """Where in `_bases` those are that each step brings along."""
        self._bases = (ctypes.c_int64 * (_NUM_OWN + len(outer)))()
        self._kept = [call for _, call, _ in first.calls]
        """Owns the calls' fields, which are overwritten by each replay."""
        self._calls = (KeptCall * len(first.calls))(
            *((kernel.number, ctypes.addressof(call)) for kernel, call, _ in first.calls)
        )
        self._patches = (Patch * len(fields))()
        for patch, field in zip(self._patches, fields, strict=True):
            per_token = field.per_token
            if isinstance(field.base, Buffer):
                number = _OUTPUT if field.base == first.output else _MEMORY
                per_token += places.get(field.base, 0)
            else:
                number = _NOTHING if field.base is None else self._outer[field.base]
            patch.field = ctypes.addressof(self._kept[field.call]) + 8 * field.index
            patch.base, patch.constant, patch.per_token = number, field.constant, per_token

    def run(self, num_tokens: int, bases: Mapping[Hashable, int]) -> torch.Tensor:  # [num_tokens, size]
        """The result. `bases` has at least all that the fields are based on, but for the program's own memory."""
        for base, number in self._outer.items():
            self._bases[number] = bases[base]
        needed = num_tokens * self._bytes_per_token
        if self._memory.nbytes < needed:
            self._memory = torch.empty(needed, dtype=torch.uint8)
        out = torch.empty(num_tokens, self._size, dtype=self._dtype)
        self._bases[_MEMORY], self._bases[_OUTPUT] = self._memory.data_ptr(), out.data_ptr()
        self._replay(
            ctypes.addressof(self._calls),
            len(self._calls),
            ctypes.addressof(self._patches),
            len(self._patches),
            ctypes.addressof(self._bases),
            num_tokens,
        )
        return out
