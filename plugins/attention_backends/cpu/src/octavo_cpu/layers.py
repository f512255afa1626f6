"""The arithmetic of a decoder's layers, done by the kernels.

Each class here is what `octavo.nn` calls a layer's `kernel`. Tensors are on the CPU, float32 or bfloat16.

Owns: the way from tensors to the kernels' arguments. Must never know: which model the layers belong to.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from octavo.nn import Rotation, apply_rotary
from octavo_cpu.library import (
    DTYPES,
    INT4,
    INT8,
    INT8_WEIGHT_ONLY,
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

    def __init__(self, memory: WeightMemory, weight: torch.Tensor, out_dtype: torch.dtype | None = None) -> None:
        """`weight` [out, in], floating point. `out_dtype`: that of the input if None."""
        self._kernels = memory.kernels
        assert self.admits(weight), f"{type(self).__name__} cannot hold this weight of {tuple(weight.shape)}"
        self._out, self._in = weight.shape
        self._out_dtype = out_dtype
        self._format = self.format_of(weight)
        self._packed = memory.take(self._kernels.packed_bytes(self._format, self._out, self._in), torch.uint8)
        self._scales = self._pack(weight)
        self._bias: tuple[torch.Tensor, torch.Tensor] | None = None
        """The layer's bias, and the same in float32."""

    @classmethod
    def admits(cls, weight: torch.Tensor) -> bool:
        """Whether it can hold this weight; bfloat16 is multiplied in pairs."""
        return weight.dtype == torch.float32 or weight.shape[1] % 2 == 0

    def format_of(self, weight: torch.Tensor) -> int:
        """What the kernel calls the form that the weight is packed into."""
        return DTYPES[weight.dtype]

    def _pack(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Fill `_packed`; returns what the kernel wants beside it: scales of the outputs."""
        self._pack_numbers(weight)
        return None

    def _pack_numbers(self, numbers: torch.Tensor) -> None:
        numbers = numbers.contiguous()
        self._kernels.pack(numbers.data_ptr(), self._format, self._out, self._in, self._packed.data_ptr())

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x` [num_tokens, in] to [num_tokens, out]."""
        assert x.shape[1:] == (self._in,), f"an input of {tuple(x.shape)} for {self._in} features"
        x = x if x.stride(-1) == 1 else x.contiguous()
        if bias is not None and (self._bias is None or self._bias[0] is not bias):
            self._bias = (bias, bias.float())
        out = torch.empty(x.shape[0], self._out, dtype=self._out_dtype or x.dtype)
        self._kernels.linear(
            LinearCall(
                out=out.data_ptr(),
                x=x.data_ptr(),
                weight=self._packed.data_ptr(),
                scales=None if self._scales is None else self._scales.data_ptr(),
                bias=None if bias is None or self._bias is None else self._bias[1].data_ptr(),
                out_dtype=DTYPES[out.dtype],
                dtype=DTYPES[x.dtype],
                weight_dtype=self._format,
                num_rows=x.shape[0],
                num_columns=self._out,
                depth=self._in,
                out_stride=self._out,
                x_stride=x.stride(0),
            )
        )
        return out


class Int8WeightOnlyLinear(PackedLinear):
    """A linear layer's product over a weight in int8, with a scale for each output.

    A scale makes its largest number 127 (absmax quantisation, LLM.int8(), arXiv:2208.07339, section 2.1).
    """

    @classmethod
    def admits(cls, weight: torch.Tensor) -> bool:
        return True

    def format_of(self, weight: torch.Tensor) -> int:
        return INT8_WEIGHT_ONLY

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        scales = weight.float().abs().amax(dim=1) / 127
        self._pack_numbers((weight.float() / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8))
        return functional.pad(scales, (0, self._kernels.packed_columns(self._out) - self._out))


class Int8Linear(Int8WeightOnlyLinear):
    """Likewise, with inputs in int8 too: a scale for each 32 of a row.

    Scales for short stretches keep outliers from costing the rest of a row its precision (ZeroQuant, arXiv:2206.01861,
    section 4).
    """

    @classmethod
    def admits(cls, weight: torch.Tensor) -> bool:
        return weight.shape[1] % 4 == 0

    def format_of(self, weight: torch.Tensor) -> int:
        return INT8


class Int4Linear(PackedLinear):
    """A linear layer's product over a weight of 4 bits, with inputs in int8.

    Each 32 weights of an output are scale · number + offset, from the smallest, 0, to the largest, 15, with scale and
    offset in float16. That is Q4_1 of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), so a weight
    that comes from there as float32 stays exactly what it was.
    """

    @classmethod
    def admits(cls, weight: torch.Tensor) -> bool:
        """Float16 ends at 65,504, also for a range from the smallest to the largest."""
        return weight.shape[1] % 32 == 0 and bool(weight.abs().max() <= 32_000)

    def format_of(self, weight: torch.Tensor) -> int:
        return INT4

    def _pack(self, weight: torch.Tensor) -> None:
        stretches = weight.float().unflatten(1, (-1, 32))
        low, high = stretches.aminmax(dim=2)
        scale, offset = ((high - low) / 15).half(), low.half()
        numbers = (stretches - offset.float()[..., None]) / scale.float().clamp(min=1e-30)[..., None]
        numbers = numbers.round().clamp(0, 15).to(torch.uint8).contiguous()
        factors = torch.stack([offset, scale], dim=2)  # as one little-endian number: the scale above the offset
        self._kernels.pack_int4(numbers.data_ptr(), factors.data_ptr(), self._out, self._in, self._packed.data_ptr())


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
    """`octavo.nn.SiluAndMul` in one pass."""

    def __init__(self, kernels: Kernels) -> None:
        self._silu_and_mul = kernels.silu_and_mul

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [num_tokens, 2 * size] -> [num_tokens, size]
        size = x.shape[1] // 2
        x = x if x.stride(1) == 1 else x.contiguous()
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
