"""The arithmetic of a decoder's layers, done by the kernels.

Each class here is what `octavo.nn` calls a layer's `kernel`. Tensors are on the CPU, float32 or bfloat16.

Owns: the way from tensors to the kernels' arguments. Must never know: which model the layers belong to.
"""

from __future__ import annotations

import torch

from octavo.nn import Rotation, apply_rotary
from octavo_cpu.library import DTYPES, Kernels


class PackedLinear:
    """A linear layer's product over a packed copy of its weight. A row's result does not depend on other rows."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor) -> None:
        """`weight` [out, in]; `in` is even."""
        self._kernel = kernels.linear
        self._out, self._in = weight.shape
        weight = weight.contiguous()
        self._packed = torch.empty(kernels.packed_columns(self._out) * self._in, dtype=weight.dtype)
        kernels.pack(weight.data_ptr(), DTYPES[weight.dtype], self._out, self._in, self._packed.data_ptr())
        self._how = DTYPES[weight.dtype]
        """What the kernel has to know of the packed weight."""

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x` [num_tokens, in] to [num_tokens, out]."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        if bias is not None:
            bias = bias.float()
        out = torch.empty(x.shape[0], self._out, dtype=x.dtype)
        self._kernel(
            out.data_ptr(),
            x.data_ptr(),
            DTYPES[x.dtype],
            self._packed.data_ptr(),
            self._how,
            None if bias is None else bias.data_ptr(),
            x.shape[0],
            self._out,
            self._in,
            self._out,
            x.stride(0),
        )
        return out


class Int8Linear(PackedLinear):
    """A linear layer's product in int8: weights with a scale for each output, inputs with one for each 32 in a row.

    A scale makes its largest number 127 (absmax quantisation, LLM.int8(), arXiv:2208.07339, section 2.1); scales for
    short stretches keep outliers from costing the rest of a row its precision (ZeroQuant, arXiv:2206.01861, section 4).
    """

    def __init__(self, kernels: Kernels, weight: torch.Tensor) -> None:
        """`weight` [out, in], floating point; `in` is a multiple of 4."""
        self._kernel = kernels.linear_int8
        self._out, self._in = weight.shape
        num_columns = kernels.packed_columns(self._out)
        scales = weight.float().abs().amax(dim=1) / 127
        rounded = (weight.float() / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8)
        self._scales = torch.zeros(num_columns)
        self._scales[: self._out] = scales
        self._packed = torch.empty(num_columns * self._in, dtype=torch.uint8)
        kernels.pack_int8(rounded.data_ptr(), self._out, self._in, self._packed.data_ptr())
        self._how = self._scales.data_ptr()


class FusedRMSNorm:
    """`octavo.nn.RMSNorm`, with the addition of the residual, in one pass."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, eps: float) -> None:
        self._rms_norm, self._weight, self._eps = kernels.rms_norm, weight, eps
        self._size = weight.shape[0]

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # [..., size]
        assert x.dtype == self._weight.dtype, "a norm's input and weight are of one dtype"
        shape = x.shape
        if x.dim() != 2 or x.stride(1) != 1:
            x = x.reshape(-1, self._size)
        out = torch.empty(x.shape, dtype=x.dtype)
        total = None
        if residual is not None:
            residual = residual.contiguous()
            total = torch.empty(x.shape, dtype=x.dtype)
        self._rms_norm(
            out.data_ptr(),
            None if total is None else total.data_ptr(),
            x.data_ptr(),
            None if residual is None else residual.data_ptr(),
            self._weight.data_ptr(),
            DTYPES[x.dtype],
            x.shape[0],
            self._size,
            x.stride(0),
            self._eps,
        )
        return out.view(shape) if total is None else (out.view(shape), total.view(shape))


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
        self._silu_and_mul(out.data_ptr(), x.data_ptr(), DTYPES[x.dtype], x.shape[0], size, x.stride(0))
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
            query.data_ptr(),
            key.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            DTYPES[query.dtype],
            query.shape[0],
            query.shape[1],
            key.shape[1],
            head_dim,
            half,
            query.stride(0),
            key.stride(0),
        )
        return query, key
