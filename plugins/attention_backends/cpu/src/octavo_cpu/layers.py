"""The arithmetic of a decoder's layers, done by the kernels.

Each class here is what `octavo.nn` calls a layer's `kernel`. Tensors are on the CPU, float32 or bfloat16.

Owns: the way from tensors to the kernels' arguments. Must never know: which model the layers belong to.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from octavo.nn import Rotation, apply_rotary
from octavo_cpu.library import (
    DTYPES,
    INT4,
    INT8,
    INT8_WIDENED,
    GatherCall,
    Kernels,
    LinearCall,
    RMSNormCall,
    RotateCall,
    SiluAndMulCall,
)

_LINE_BYTES = 64
_PIECE_BYTES = 32 << 20


class WeightMemory:
    """Memory for packed weights, in large pieces on huge pages: small ones cost a search in the page tables each.

    A piece is given back when no weight in it is used any more.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._piece = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int, dtype: torch.dtype) -> torch.Tensor:  # [size]
        """Memory for `size` numbers, which it does not set."""
        num_bytes = -(-size * dtype.itemsize // _LINE_BYTES) * _LINE_BYTES
        if num_bytes > _PIECE_BYTES // 2:
            return self._allocate(num_bytes).view(dtype)[:size]
        if num_bytes > len(self._piece):
            self._piece = self._allocate(_PIECE_BYTES)
        taken, self._piece = self._piece[:num_bytes], self._piece[num_bytes:]
        return taken.view(dtype)[:size]

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        self.kernels.advise_huge_pages(memory.data_ptr(), num_bytes)
        return memory


class PackedLinear:
    """A linear layer's product over a packed copy of its weight. A row's result does not depend on other rows."""

    depth_multiple: ClassVar[int] = 2
    """Of this an input's size must be a multiple."""

    def __init__(self, memory: WeightMemory, weight: torch.Tensor, out_dtype: torch.dtype | None = None) -> None:
        """`weight` [out, in], floating point. `out_dtype`: that of the input if None."""
        self._linear = memory.kernels.linear
        self._out, self._in = weight.shape
        assert self._in % self.depth_multiple == 0, f"{self._in} features are no multiple of {self.depth_multiple}"
        self._out_dtype = out_dtype
        self._scales: torch.Tensor | None = None
        self._weight_dtype, self._packed = self._pack(memory, weight)
        self._bias: tuple[torch.Tensor, torch.Tensor] | None = None
        """The layer's bias, and the same in float32."""

    def _pack(self, memory: WeightMemory, weight: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The weight as the kernel reads it, and which of its formats that is."""
        return DTYPES[weight.dtype], self._packed_as(memory, weight, DTYPES[weight.dtype])

    def _packed_as(self, memory: WeightMemory, numbers: torch.Tensor, weight_dtype: int) -> torch.Tensor:
        kernels, numbers = memory.kernels, numbers.contiguous()
        packed = memory.take(kernels.packed_columns(self._out) * self._in, numbers.dtype)
        kernels.pack(numbers.data_ptr(), weight_dtype, self._out, self._in, packed.data_ptr())
        return packed

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x` [num_tokens, in] to [num_tokens, out]."""
        assert x.shape[1:] == (self._in,), f"an input of {tuple(x.shape)} for {self._in} features"
        x = x if x.stride(-1) == 1 else x.contiguous()
        if bias is not None and (self._bias is None or self._bias[0] is not bias):
            self._bias = (bias, bias.float())
        out = torch.empty(x.shape[0], self._out, dtype=self._out_dtype or x.dtype)
        self._linear(
            LinearCall(
                out=out.data_ptr(),
                x=x.data_ptr(),
                weight=self._packed.data_ptr(),
                scales=None if self._scales is None else self._scales.data_ptr(),
                bias=None if bias is None or self._bias is None else self._bias[1].data_ptr(),
                out_dtype=DTYPES[out.dtype],
                dtype=DTYPES[x.dtype],
                weight_dtype=self._weight_dtype,
                num_rows=x.shape[0],
                num_columns=self._out,
                depth=self._in,
                out_stride=self._out,
                x_stride=x.stride(0),
            )
        )
        return out


class Int8WeightLinear(PackedLinear):
    """A linear layer's product over a weight in int8, with a scale for each output.

    A scale makes its largest number 127 (absmax quantisation, LLM.int8(), arXiv:2208.07339, section 2.1).
    """

    depth_multiple = 1
    weight_dtype: ClassVar[int] = INT8_WIDENED

    def _pack(self, memory: WeightMemory, weight: torch.Tensor) -> tuple[int, torch.Tensor]:
        scales = weight.float().abs().amax(dim=1) / 127
        numbers = (weight.float() / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8)
        self._scales = torch.zeros(memory.kernels.packed_columns(self._out))
        self._scales[: self._out] = scales
        return self.weight_dtype, self._packed_as(memory, numbers, self.weight_dtype)


class Int8Linear(Int8WeightLinear):
    """Likewise, with inputs in int8 too: a scale for each 32 of a row.

    Scales for short stretches keep outliers from costing the rest of a row its precision (ZeroQuant, arXiv:2206.01861,
    section 4).
    """

    depth_multiple = 4
    weight_dtype = INT8


class Int4Linear(PackedLinear):
    """A linear layer's product over a weight of 4 bits, with inputs in int8.

    Each 32 weights of an output are scale · number + offset, from their smallest to their largest. That is how GGUF's
    Q4_1 has them (https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h, `block_q4_1`), so a weight
    that comes from there stays what it was, but for the rounding of scale and offset to bfloat16.
    """

    depth_multiple = 32
    _stretch: ClassVar[int] = 32
    _stretch_bytes: ClassVar[int] = 20
    """Of one output: the numbers, scale and offset."""

    def _pack(self, memory: WeightMemory, weight: torch.Tensor) -> tuple[int, torch.Tensor]:
        kernels, stretches = memory.kernels, weight.float().unflatten(1, (-1, self._stretch))
        low, high = stretches.aminmax(dim=2)
        scale, offset = ((high - low) / 15).bfloat16(), low.bfloat16()
        numbers = (stretches - offset.float()[..., None]) / scale.float().clamp(min=1e-30)[..., None]
        numbers = numbers.round().clamp(0, 15).to(torch.uint8).contiguous()
        factors = torch.stack([offset, scale], dim=2)  # as one little-endian number: the scale above the offset
        num_stretches = kernels.packed_columns(self._out) * (self._in // self._stretch)
        packed = memory.take(num_stretches * self._stretch_bytes, torch.uint8)
        kernels.pack_int4(numbers.data_ptr(), factors.data_ptr(), self._out, self._in, packed.data_ptr())
        return INT4, packed


class FusedRMSNorm:
    """`octavo.nn.RMSNorm`, with the addition of the residual, in one pass."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, eps: float) -> None:
        self._rms_norm, self._weight, self._eps = kernels.rms_norm, weight, eps
        self._size = weight.shape[0]

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # [..., size]
        assert x.dtype == self._weight.dtype, "a norm's input and weight are of one dtype"
        group, stride = 1, self._size
        if x.dim() == 3 and x.stride(2) == 1 and x.stride(1) == self._size:
            group, stride = x.shape[1], x.stride(0)
        elif x.dim() == 2 and x.stride(1) == 1:
            stride = x.stride(0)
        else:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        total = None
        if residual is not None:
            residual = residual.contiguous()
            total = torch.empty(x.shape, dtype=x.dtype)
        self._rms_norm(
            RMSNormCall(
                out=out.data_ptr(),
                sum=None if total is None else total.data_ptr(),
                x=x.data_ptr(),
                residual=None if residual is None else residual.data_ptr(),
                weight=self._weight.data_ptr(),
                dtype=DTYPES[x.dtype],
                num_rows=out.numel() // self._size,
                size=self._size,
                group=group,
                x_stride=stride,
                eps=self._eps,
            )
        )
        return out if total is None else (out, total)


class FusedSiluAndMul:
    """`octavo.nn.SiluAndMul` in one pass, where the size is a multiple of the vector's."""

    def __init__(self, kernels: Kernels) -> None:
        self._silu_and_mul, self._lanes = kernels.silu_and_mul, kernels.num_lanes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, 2 * size] -> [num_tokens, size]
        size = x.shape[-1] // 2
        if size % self._lanes or x.dim() != 2 or x.stride(1) != 1:
            gate, up = x.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up
        out = torch.empty(x.shape[0], size, dtype=x.dtype)
        self._silu_and_mul(
            SiluAndMulCall(
                out=out.data_ptr(),
                x=x.data_ptr(),
                dtype=DTYPES[x.dtype],
                num_rows=x.shape[0],
                size=size,
                x_stride=x.stride(0),
            )
        )
        return out


class InPlaceRotate:
    """`octavo.nn.Rotate` that writes over its arguments."""

    def __init__(self, kernels: Kernels) -> None:
        self._rotate, self._lanes = kernels.rotate, kernels.num_lanes

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, rotation: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [num_tokens, num_heads, head_dim] each
        cos, sin = rotation
        half, head_dim = cos.shape[-1], query.shape[2]
        if half % self._lanes or any(x.stride(2) != 1 or x.stride(1) != head_dim for x in (query, key)):
            return apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        self._rotate(
            RotateCall(
                query=query.data_ptr(),
                key=key.data_ptr(),
                cos=cos.data_ptr(),
                sin=sin.data_ptr(),
                dtype=DTYPES[query.dtype],
                num_tokens=query.shape[0],
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                head_dim=head_dim,
                half=half,
                query_stride=query.stride(0),
                key_stride=key.stride(0),
            )
        )
        return query, key


def gather(kernels: Kernels, table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """`table[indices]`: `table` [num_rows, size] contiguous, `indices` [num_tokens] int64, within the table."""
    assert indices.dtype == torch.int64
    assert indices.is_contiguous()
    assert table.is_contiguous()
    out = torch.empty(indices.shape[0], table.shape[1], dtype=table.dtype)
    kernels.gather(
        GatherCall(
            out=out.data_ptr(),
            table=table.data_ptr(),
            indices=indices.data_ptr(),
            num_rows=indices.shape[0],
            row_bytes=table.shape[1] * table.itemsize,
        )
    )
    return out


class TableLookup:
    """`octavo.nn.VocabEmbedding` of one rank that holds everything."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor) -> None:
        self._kernels, self._weight = kernels, weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:  # [num_tokens] int64 -> [num_tokens, size]
        return gather(self._kernels, self._weight, token_ids)


class RotationLookup:
    """`octavo.nn.RotaryEmbedding`."""

    def __init__(self, kernels: Kernels, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._kernels, self._cos, self._sin = kernels, cos, sin

    def __call__(self, positions: torch.Tensor) -> Rotation:  # [num_tokens] int64
        cos, sin = (gather(self._kernels, table, positions) for table in (self._cos, self._sin))
        return cos.unsqueeze(1), sin.unsqueeze(1)
