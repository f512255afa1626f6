"""A model whose next token is an exact function of all tokens so far, read back from the paged KV cache.

Each position stores its token id in the cache. Attention gathers the ids of its whole history through the block
table and folds them into one number, and that number alone decides the logits. So a wrong block, slot, position or
prefix hit changes the tokens, with no rounding to hide it, and a step costs microseconds.

`table_llm()` is an `LLM` with it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from octavo.hookspecs import hookimpl
from octavo.nn import Attention
from octavo.sampling.randomness import exponential_noise
from octavo.spec import (
    AttentionBackendEntry,
    AttentionCapabilities,
    AttentionLayerParams,
    AttentionMetadataInputs,
    ForwardBatch,
    FullAttentionSpec,
    KVCacheSpec,
    ModelContext,
    ModelEntry,
    TokenizerData,
    WeightFormatEntry,
)

ARCHITECTURE = "OctavoTableModel"
SUFFIX = ".octavo-table"
VOCAB_SIZE = 64
MAX_MODEL_LEN = 512
EOS_TOKEN_ID = 1
_MODULUS = 1_000_003  # below 2^24, so a float32 holds every state exactly
_MULTIPLIER = 16


def next_state(state: int, token_id: int) -> int:
    """The number that stands for a history, after one more token."""
    return (state * _MULTIPLIER + token_id + 1) % _MODULUS


def state_of(token_ids: Sequence[int]) -> int:
    """The number that stands for `token_ids`."""
    state = 0
    for token_id in token_ids:
        state = next_state(state, token_id)
    return state


def logits_of(states: torch.Tensor) -> torch.Tensor:
    """Logits [num_rows, vocab_size] of states [num_rows]: pseudo-random, the same for the same state."""
    noise = exponential_noise(states.to(torch.int64).numpy().astype(np.uint64), torch.arange(VOCAB_SIZE))
    return noise.log_().neg_()


def table_next_logits(token_ids: Sequence[int]) -> torch.Tensor:
    """Logits [vocab_size] of the token that follows, straight from the definition."""
    return logits_of(torch.tensor([state_of(token_ids)]))[0]


class TableAttention:
    """An attention backend that folds the token ids of the history, or of a window; implements `AttentionBackend`."""

    def kv_shape(self, spec: KVCacheSpec, num_blocks: int) -> Sequence[int]:
        return (num_blocks, spec.block_size, 2)  # the spec counts a key and a value for each token

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
    ) -> torch.Tensor:  # [num_tokens, 1, 1]
        slots = kv_cache.view(-1, 2)
        slots[metadata.slot_mapping, 0] = key[:, 0, 0]
        states: list[int] = []
        starts = metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(metadata.seq_lens.tolist()):
            positions = torch.arange(seq_len)
            blocks = metadata.block_table[i].long()[positions // metadata.block_size]
            history = slots[blocks * metadata.block_size + positions % metadata.block_size, 0]
            first = seq_len - (starts[i + 1] - starts[i])
            if layer.sliding_window is None:
                ids = [int(x) for x in history.tolist()]
                states += list(accumulate(ids, next_state, initial=0))[first + 1 :]
            else:  # what left the window may be anything by now
                for end in range(first + 1, seq_len + 1):
                    window = history[max(0, end - layer.sliding_window) : end]
                    states.append(state_of([int(x) for x in window.tolist()]))
        return torch.tensor(states, dtype=torch.float32).view(-1, 1, 1)


class TableModel(torch.nn.Module):
    """The model; its one layer carries token ids as keys. Implements `Model`."""

    packed_modules: Mapping[str, tuple[str, ...]] = {}
    vocab_size = VOCAB_SIZE

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__()
        params = AttentionLayerParams(num_heads=1, num_kv_heads=1, head_dim=1, scale=1.0)
        spec = FullAttentionSpec(block_size=context.block_size, num_kv_heads=1, head_dim=1, dtype="float32")
        self.attention = Attention("attention", params, spec)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        ids = batch.input_ids.to(torch.float32).view(-1, 1, 1)
        return self.attention(ids, ids, ids, batch).view(-1, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits_of(hidden[:, 0])

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return {self.attention.name: self.attention.spec}

    def ignored_weights(self) -> Sequence[str]:
        return ()


class TableSource:
    """A `ModelSource` without weights; its tokenizer has one printable character for each token."""

    generation_config: Mapping[str, Any] = {"eos_token_id": EOS_TOKEN_ID}

    def __init__(self, path: str) -> None:
        self.path = path
        self.config = {
            "architectures": [ARCHITECTURE],
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": MAX_MODEL_LEN,
        }

    def tensor_names(self) -> Sequence[str]:
        return ()

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def tokenizer(self) -> TokenizerData:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = {"<unk>": 0, "<eos>": EOS_TOKEN_ID} | {chr(ord("0") + i - 2): i for i in range(2, VOCAB_SIZE)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(["<unk>", "<eos>"])
        return TokenizerData(
            tokenizer_json=tokenizer.to_str(),
            bos_token=None,
            eos_tokens=("<eos>",),
            special_tokens={"eos_token": "<eos>"},
            chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
        )


def table_model_path() -> str:
    """A path that the table model's weight format reads; an empty file, made once for each user."""
    path = os.path.join(tempfile.gettempdir(), f"octavo-{os.getuid()}{SUFFIX}")
    open(path, "a").close()
    return path


class TablePlugin:
    """The plugin that offers model, backend and weight format."""

    @hookimpl
    def octavo_register_models(self) -> list[ModelEntry]:
        return [ModelEntry(name=ARCHITECTURE, factory=TableModel)]

    @hookimpl
    def octavo_register_weight_formats(self) -> list[WeightFormatEntry]:
        return [WeightFormatEntry(name="table", can_read=lambda path: path.endswith(SUFFIX), factory=TableSource)]

    @hookimpl
    def octavo_register_attention_backends(self) -> list[AttentionBackendEntry]:
        capabilities = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), max_head_dim=1)
        return [AttentionBackendEntry(name="table", factory=lambda _: TableAttention(), capabilities=capabilities)]


def table_llm(**keywords: Any) -> Any:
    """An `LLM` that runs the table model and loads no installed plugin; keywords as for `LLM`."""
    from octavo import LLM

    plugins = [TablePlugin(), *keywords.pop("plugins", ())]
    defaults: dict[str, Any] = {
        "autoload_plugins": False,
        "dtype": "float32",
        "device": "cpu",
        "num_blocks": 256,
        "num_threads": 1,
    }
    return LLM(table_model_path(), plugins=plugins, **(defaults | keywords))
