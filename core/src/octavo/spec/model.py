"""Contract of models: what they are built from, the batch that they see, what they return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from octavo.spec.kv import KVCacheSpec

if TYPE_CHECKING:
    import torch


class Communicator(Protocol):
    """The ranks that hold one model's shards. A world of one is the identity."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks; same shape."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate all ranks' tensors along the last dimension."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """What a model is built with, besides its config."""

    dtype: torch.dtype
    device: torch.device
    block_size: int
    """Tokens in a block: models put it into their KV cache specs."""
    max_model_len: int
    communicator: Communicator
    layer_range: tuple[int, int] | None = None
    """Which decoder layers to build (pipeline parallelism); None: all."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The flattened batch of one step: all sequences' scheduled tokens in a row, no padding.

    Tensors live in buffers that keep their address from step to step, so that a captured graph can replay them.
    """

    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    attention: Sequence[Any]
    """The backend's metadata for each KV cache group: `attention[group_id]`."""
    adapter_ids: torch.Tensor | None = None  # [num_tokens] int32
    intermediate: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What an earlier pipeline stage passed on; tensors of [num_tokens, …]."""


class Model(Protocol):
    """A decoder. Built by its factory as `factory(config, context)`; a `torch.nn.Module` in practice.

    `config` is the model's own configuration as a mapping with Hugging Face's key names.
    """

    packed_modules: Mapping[str, tuple[str, ...]]
    """Fused parameter name part to the names it is loaded from: {"qkv_proj": ("q_proj", "k_proj", "v_proj")}."""
    vocab_size: int

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size], after the final norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] of hidden states [num_rows, hidden_size]."""
        ...

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        """One spec for each attention layer, by the layer's name, in layer order."""
        ...

    def modules(self) -> Iterator[Any]:
        """The model itself and all modules in it, as `torch.nn.Module` gives them."""
        ...

    def ignored_weights(self) -> Sequence[str]:
        """Regular expressions (full match) of checkpoint names that the model does not want."""
        ...
