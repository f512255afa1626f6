"""The layers that models are built from.

Each layer loads its own shard of the weights, so that a model is written once for one rank and for many.
Owns: layers and the `Attention` seam. Must never know: engines, schedulers, files, or which model it is part of.
"""

from octavo.nn.activation import SiluAndMul
from octavo.nn.attention import Attention, attention_layers
from octavo.nn.communicator import LocalCommunicator
from octavo.nn.embedding import LMHead, VocabEmbedding
from octavo.nn.linear import (
    ColumnLinear,
    Linear,
    LinearKernel,
    MergedColumnLinear,
    Projection,
    QKVLinear,
    RowLinear,
)
from octavo.nn.norm import RMSNorm
from octavo.nn.rotary import (
    RotaryEmbedding,
    RotaryParameters,
    Rotate,
    Rotation,
    apply_rotary,
    inverse_frequencies,
)
from octavo.nn.weights import fill_parameter, new_parameter, share_of

__all__ = [
    "Attention",
    "ColumnLinear",
    "LMHead",
    "Linear",
    "LinearKernel",
    "LocalCommunicator",
    "MergedColumnLinear",
    "Projection",
    "QKVLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "RotaryParameters",
    "Rotate",
    "Rotation",
    "RowLinear",
    "SiluAndMul",
    "VocabEmbedding",
    "apply_rotary",
    "attention_layers",
    "fill_parameter",
    "inverse_frequencies",
    "new_parameter",
    "share_of",
]
