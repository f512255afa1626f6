"""What a model needs to run that is not under test: a reader of folders, and paged attention by definition.

Owns: `FolderPlugin`, `FolderSource`, `PagedDenseAttention`. Must never know: any model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from octavo.errors import ModelLoadError
from octavo.hookspecs import hookimpl
from octavo.spec import (
    AttentionBackendEntry,
    AttentionCapabilities,
    AttentionLayerParams,
    AttentionMetadataInputs,
    KVCacheSpec,
    TokenizerData,
    WeightFormatEntry,
)
from octavo.testing.dense_attention import dense_attention


class FolderSource:
    """A `ModelSource` over config.json and *.safetensors, without a tokenizer.

    `changes` are tensors to put in besides, or, where None, to leave out.
    """

    generation_config: Mapping[str, Any] = {}

    def __init__(self, path: str | Path, changes: Mapping[str, torch.Tensor | None] | None = None) -> None:
        self.path = str(path)
        self.config: Mapping[str, Any] = json.loads(Path(path, "config.json").read_text())
        tensors: dict[str, torch.Tensor | None] = {}
        for file in sorted(Path(path).glob("*.safetensors")):
            tensors |= load_file(file)
        self._tensors = {name: t for name, t in (tensors | dict(changes or {})).items() if t is not None}

    def tensor_names(self) -> Sequence[str]:
        return list(self._tensors)

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors.items():
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor

    def tokenizer(self) -> TokenizerData:
        raise ModelLoadError(f"{self.path}: suites test models with token ids")


class PagedDenseAttention:
    """An `AttentionBackend` that gathers each sequence's keys and values and does what the definition says."""

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> Sequence[int]:
        return (2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)  # type: ignore[attr-defined]

    def build_metadata(self, inputs: AttentionMetadataInputs) -> AttentionMetadataInputs:
        return inputs

    def forward(
        self,
        layer: AttentionLayerParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadataInputs,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        slots = kv_cache.flatten(1, 2)  # [2, num_slots, num_kv_heads, head_dim]
        slots[0, metadata.slot_mapping], slots[1, metadata.slot_mapping] = key, value
        output = torch.empty_like(query)
        starts = metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(metadata.seq_lens.tolist()):
            positions = torch.arange(seq_len)
            own = metadata.block_table[i].long()[positions // metadata.block_size] * metadata.block_size
            history = slots[:, own + positions % metadata.block_size]
            history = history.nan_to_num() if layer.sliding_window is not None else history  # given back by now
            rows = slice(starts[i], starts[i + 1])
            output[rows] = dense_attention(layer, query[rows], history[0], history[1], sinks)
        return output


class FolderPlugin:
    """The plugin that offers them."""

    @hookimpl
    def octavo_register_weight_formats(self) -> list[WeightFormatEntry]:
        return [WeightFormatEntry(name="folder", can_read=os.path.isdir, factory=FolderSource)]

    @hookimpl
    def octavo_register_attention_backends(self) -> list[AttentionBackendEntry]:
        can = AttentionCapabilities(
            devices=frozenset({"cpu"}),
            dtypes=frozenset({"float32"}),
            sliding_window=True,
            soft_cap=True,
            alibi=True,
            sinks=True,
        )
        return [AttentionBackendEntry(name="paged-dense", factory=lambda _: PagedDenseAttention(), capabilities=can)]
