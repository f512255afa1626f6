"""Contract of attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from octavo.spec.kv import FullAttentionSpec, KVCacheSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayerParams:
    """What one attention layer asks of its backend."""

    num_heads: int
    num_kv_heads: int
    """Divides `num_heads`; query head h reads KV head h // (num_heads // num_kv_heads)."""
    head_dim: int
    scale: float
    sliding_window: int | None = None
    """A query at position p sees positions p - sliding_window + 1 … p."""
    soft_cap: float | None = None
    """Scores s become soft_cap * tanh(s / soft_cap) before masking."""
    alibi_slopes: tuple[float, ...] | None = None
    """One for each query head; slope * (key position - query position) is added to the score."""
    has_sinks: bool = False
    """A learnt logit for each head joins the softmax's denominator (passed to `forward` as `sinks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """What a backend can do. The engine matches this with each layer; it never looks at a backend's name."""

    devices: frozenset[str]
    """`cpu`, `cuda`."""
    dtypes: frozenset[str]
    head_dim_multiple: int = 1
    max_head_dim: int | None = None
    block_size_multiple: int = 1
    sliding_window: bool = False
    soft_cap: bool = False
    alibi: bool = False
    sinks: bool = False
    spec_types: tuple[type[KVCacheSpec], ...] = (FullAttentionSpec,)
    """KV cache specs that it can read, with their subclasses."""

    def refusal(self, layer: AttentionLayerParams, spec: KVCacheSpec, device: str, dtype: str) -> str | None:
        """Why this backend cannot serve `layer`, in one clause, or None if it can."""
        lacks = [
            (device not in self.devices, f"runs on {', '.join(sorted(self.devices))}, not {device}"),
            (dtype not in self.dtypes, f"computes in {', '.join(sorted(self.dtypes))}, not {dtype}"),
            (
                layer.head_dim % self.head_dim_multiple != 0,
                f"needs head sizes that {self.head_dim_multiple} divides",
            ),
            (
                self.max_head_dim is not None and layer.head_dim > self.max_head_dim,
                f"has no head size {layer.head_dim} (at most {self.max_head_dim})",
            ),
            (
                spec.block_size % self.block_size_multiple != 0,
                f"needs block sizes that {self.block_size_multiple} divides, not {spec.block_size}",
            ),
            (layer.sliding_window is not None and not self.sliding_window, "has no sliding window"),
            (layer.soft_cap is not None and not self.soft_cap, "has no logit soft cap"),
            (layer.alibi_slopes is not None and not self.alibi, "has no alibi"),
            (layer.has_sinks and not self.sinks, "has no attention sinks"),
            (not isinstance(spec, self.spec_types), f"cannot read a KV cache of {type(spec).__name__}"),
        ]
        return next((reason for refused, reason in lacks if refused), None)


@dataclass(frozen=True, slots=True)
class AttentionMetadataInputs:
    """What a backend builds its per-step metadata from; the same for all layers of one KV cache group.

    Tensors are on the model's device; the `_cpu` twins are numpy arrays with the same contents.
    """

    block_table: torch.Tensor  # [num_seqs, max_num_blocks] int32; 0 is the null block
    slot_mapping: torch.Tensor  # [num_tokens] int64: block_id * block_size + offset of each token's own KV
    query_start_loc: torch.Tensor  # [num_seqs + 1] int32: where each sequence's tokens start in the flat batch
    seq_lens: torch.Tensor  # [num_seqs] int32: computed + scheduled tokens
    positions: torch.Tensor  # [num_tokens] int64
    block_table_cpu: Any
    query_start_loc_cpu: Any
    seq_lens_cpu: Any
    max_query_len: int
    max_seq_len: int
    block_size: int


class AttentionBackend(Protocol):
    """Paged attention over the flattened batch. One instance serves all layers of a KV cache group.

    It may keep no state between steps but what `build_metadata` returns, so that two engines can share a process.
    """

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> Sequence[int]:
        """Shape of one layer's KV cache tensor. Its bytes must be `num_blocks * spec.page_size_bytes`."""
        ...

    def build_metadata(self, inputs: AttentionMetadataInputs) -> Any:
        """Whatever `forward` wants computed once a step instead of once a layer."""
        ...

    def forward(
        self,
        layer: AttentionLayerParams,
        query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        kv_cache: torch.Tensor,  # [*kv_shape(spec, num_blocks)]
        metadata: Any,
        sinks: torch.Tensor | None = None,  # [num_heads]
    ) -> torch.Tensor:  # [num_tokens, num_heads, head_dim]
        """Write `key` and `value` to the slots of this step's tokens, then attend causally.

        Slots that no position of a sequence owns may hold anything, NaN included; they must not leak.
        """
        ...
