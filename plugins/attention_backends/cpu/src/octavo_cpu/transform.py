"""Gives a loaded model's layers their kernels.

Owns: which layer gets which. Must never know: how a model is put together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from octavo.errors import ConfigError
from octavo.nn import LMHead, Projection, RMSNorm, RotaryEmbedding, Rotate, SiluAndMul, VocabEmbedding
from octavo_cpu.build import unavailable
from octavo_cpu.capture import CapturedForward
from octavo_cpu.layers import (
    FusedRMSNorm,
    FusedSiluAndMul,
    InPlaceRotate,
    Int4Linear,
    Int8Linear,
    Int8WeightOnlyLinear,
    PackedLinear,
    RotationLookup,
    TableLookup,
    WeightMemory,
)
from octavo_cpu.library import DTYPES, load_kernels

logger = logging.getLogger(__name__)

LINEARS: Mapping[str, Sequence[type[PackedLinear]]] = {
    "none": (PackedLinear,),
    "int8": (Int8Linear, Int8WeightOnlyLinear),
    "int8_weight_only": (Int8WeightOnlyLinear,),
    "int4": (Int4Linear, Int8Linear, Int8WeightOnlyLinear),
}
"""Products for each value of `plugins.cpu.quantization`; a layer has the first that admits its weight. The head is
never int4: errors of logits cost more than is saved."""


def use_kernels(model: Any, options: Any) -> Any:
    """The model, its layers served by the kernels as far as they can be; one on another device as it is.

    Weights are packed one after the other and the originals given back, so that no second copy of all exists.
    """
    reason = _why_not(model, options)
    if reason is not None:
        if options.quantization != "none":
            raise ConfigError(
                f"plugins.cpu.quantization is {options.quantization!r}, but the CPU kernels cannot be used: {reason}; "
                'mend that, or set it to "none"'
            )
        return model
    kernels = load_kernels(options.isa)
    memory = WeightMemory(kernels)
    for module in model.modules():
        _serve(module, memory, LINEARS[options.quantization])
    if options.capture:
        model.forward = CapturedForward(model, kernels)
    return model


def _why_not(model: Any, options: Any) -> str | None:
    """Why the kernels serve nothing of this model; None if they do."""
    parameter = next(iter(model.parameters()), None)
    if not options.kernels:
        return "plugins.cpu.kernels is false"
    if parameter is None or parameter.device.type != "cpu":
        return "the model is not on the CPU"
    if parameter.dtype not in DTYPES:
        return f"they have no {str(parameter.dtype).removeprefix('torch.')}; set model.dtype to float32 or bfloat16"
    reason = unavailable(options.isa)
    if reason is not None:
        _warn_once(reason)
    return reason


@lru_cache
def _warn_once(reason: str) -> None:
    logger.warning("the CPU kernels cannot be used, which costs much speed: %s", reason)


def _serve(module: torch.nn.Module, memory: WeightMemory, linears: Sequence[type[PackedLinear]]) -> None:
    """Give one layer its kernel, unless it has one from elsewhere. `linears`: for its product, the best first."""
    kernels = memory.kernels
    if isinstance(module, Projection) and module.kernel is None and module.weight.dtype in DTYPES:
        is_head = isinstance(module, LMHead)
        out_dtype = torch.float32 if is_head else None  # what samplers want, without a conversion
        for linear in linears:
            if linear.admits(module.weight) and not (is_head and linear is Int4Linear):
                module.take_over(linear(memory, module.weight, out_dtype))
                break
    elif isinstance(module, RMSNorm) and module.kernel is None and module.weight.dtype in DTYPES:
        if module.weight.shape[0] % kernels.num_lanes == 0:
            module.kernel = FusedRMSNorm(kernels, module.weight, module.eps)
    elif isinstance(module, SiluAndMul) and module.kernel is None:
        module.kernel = FusedSiluAndMul(kernels)
    elif isinstance(module, Rotate) and module.kernel is None:
        module.kernel = InPlaceRotate(kernels)
    elif isinstance(module, RotaryEmbedding) and module.lookup is None:
        module.lookup = RotationLookup(kernels, module.cos, module.sin)
    elif isinstance(module, VocabEmbedding) and not isinstance(module, LMHead) and module.lookup is None:
        module.lookup = TableLookup(kernels, module.weight)
