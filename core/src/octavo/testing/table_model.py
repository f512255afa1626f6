"""A model whose next token is an exact function of all tokens so far, read back from the paged KV cache.

Each position stores its token id in the cache. Attention gathers the ids of its whole history through the block
table and folds them into one number, and that number alone decides the logits. So a wrong block, slot, position or
prefix hit changes the tokens, with no rounding to hide it, and a step costs microseconds.

`table_llm()` is an `LLM` with it. The model that leans (`architecture=LEANING`) mostly says what it said after the last
token before, so that its greedy output repeats itself and drafters have something to find.
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
LEANING = "OctavoLeaningModel"
SUFFIX = ".octavo-table"
BYTES_SUFFIX = ".octavo-bytes-table"
VOCAB_SIZE = 64
BYTES_VOCAB_SIZE = 300
"""More than the byte-level tokenizer has ids for."""
MAX_MODEL_LEN = 512
EOS_TOKEN_ID = 1
_MODULUS = 1_000_003  # below 2^24, so a float32 holds every state exactly
_MULTIPLIER = 16
_BYTES_MERGES = (
    *("t h", "th e", "a n", "an d", "Ġ the", "1 2", "t r", "u e", "tr ue", "n u"),
    *('{ "', '" :', '": "', '" ,', '", "', '" }', "} ,", "[ ]", "{ }", "Ã ©"),
)


def next_state(state: int, token_id: int) -> int:
    """The number that stands for a history, after one more token."""
    return (state * _MULTIPLIER + token_id + 1) % _MODULUS


def state_of(token_ids: Sequence[int]) -> int:
    """The number that stands for `token_ids`."""
    state = 0
    for token_id in token_ids:
        state = next_state(state, token_id)
    return state


def logits_of(states: torch.Tensor, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    """Logits [num_rows, vocab_size] of states [num_rows]: pseudo-random, the same for the same state."""
    noise = exponential_noise(states.to(torch.int64).numpy().astype(np.uint64), torch.arange(vocab_size))
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
        values: list[int] = []
        starts = metadata.query_start_loc.tolist()
        for i, seq_len in enumerate(metadata.seq_lens.tolist()):
            positions = torch.arange(seq_len)
            blocks = metadata.block_table[i].long()[positions // metadata.block_size]
            history = slots[blocks * metadata.block_size + positions % metadata.block_size, 0]
            first = seq_len - (starts[i + 1] - starts[i])
            values += self.values_of([int(x) for x in history.tolist()], first, layer.sliding_window)
        return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)

    def values_of(self, history: Sequence[int], first: int, window: int | None) -> Sequence[int]:
        """One value for each position of `history` (token ids) from `first` on, by what stands up to there."""
        if window is None:
            return list(accumulate(history, next_state, initial=0))[first + 1 :]
        # what left the window may be anything by now
        return [state_of(history[max(0, end - window) : end]) for end in range(first + 1, len(history) + 1)]


class TableModel(torch.nn.Module):
    """The model; its one layer carries token ids as keys. Implements `Model`."""

    packed_modules: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__()
        self.vocab_size: int = config["vocab_size"]
        params = AttentionLayerParams(num_heads=1, num_kv_heads=1, head_dim=1, scale=1.0)
        spec = FullAttentionSpec(block_size=context.block_size, num_kv_heads=1, head_dim=1, dtype="float32")
        self.attention = Attention("attention", params, spec)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        ids = batch.input_ids.to(torch.float32).view(-1, 1, 1)
        return self.attention(ids, ids, ids, batch).view(-1, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits_of(hidden[:, 0], self.vocab_size)

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return {self.attention.name: self.attention.spec}

    def ignored_weights(self) -> Sequence[str]:
        return ()


class LeaningModel(TableModel):
    """Mostly decided by the last token alone, and a little by everything before it."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:  # [num_tokens, 2]: state and token id
        return torch.cat([super().forward(batch), batch.input_ids.to(torch.float32).view(-1, 1)], dim=1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits_of(hidden[:, 0], self.vocab_size) + 4 * logits_of(hidden[:, 1], self.vocab_size)


class TableSource:
    """A `ModelSource` without weights.

    Its tokenizer has one printable character for each token, or, by the path's suffix, is a byte-level one whose
    tokens reach over the parts of a JSON text; then the vocabulary is padded.
    """

    generation_config: Mapping[str, Any] = {"eos_token_id": EOS_TOKEN_ID}

    def __init__(self, path: str) -> None:
        self.path = path
        self._has_bytes = path.endswith(BYTES_SUFFIX)
        self.config = {
            "architectures": [ARCHITECTURE],
            "vocab_size": BYTES_VOCAB_SIZE if self._has_bytes else VOCAB_SIZE,
            "max_position_embeddings": MAX_MODEL_LEN,
        }

    def tensor_names(self) -> Sequence[str]:
        return ()

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def tokenizer(self) -> TokenizerData:
        return TokenizerData(
            tokenizer_json=_bytes_tokenizer() if self._has_bytes else _characters_tokenizer(),
            bos_token=None,
            eos_tokens=("<eos>",),
            special_tokens={"eos_token": "<eos>"},
            chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
        )


def _characters_tokenizer() -> str:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<unk>": 0, "<eos>": EOS_TOKEN_ID} | {chr(ord("0") + i - 2): i for i in range(2, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<unk>", "<eos>"])
    return tokenizer.to_str()


def _bytes_tokenizer() -> str:
    from octavo.testing.tiny_models import byte_tokenizer_json

    merges = [left_right.split(" ") for left_right in _BYTES_MERGES]
    return byte_tokenizer_json(("<unk>", "<eos>"), [(left, right) for left, right in merges])


def table_model_path(suffix: str = SUFFIX) -> str:
    """A path that the table model's weight format reads; an empty file, made once for each user."""
    path = os.path.join(tempfile.gettempdir(), f"octavo-{os.getuid()}{suffix}")
    open(path, "a").close()
    return path


class TablePlugin:
    """The plugin that offers model, backend and weight format."""

    @hookimpl
    def octavo_register_models(self) -> list[ModelEntry]:
        return [ModelEntry(name=ARCHITECTURE, factory=TableModel), ModelEntry(name=LEANING, factory=LeaningModel)]

    @hookimpl
    def octavo_register_weight_formats(self) -> list[WeightFormatEntry]:
        suffixes = (SUFFIX, BYTES_SUFFIX)
        return [WeightFormatEntry(name="table", can_read=lambda path: path.endswith(suffixes), factory=TableSource)]

    @hookimpl
    def octavo_register_attention_backends(self) -> list[AttentionBackendEntry]:
        capabilities = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), max_head_dim=1)
        return [AttentionBackendEntry(name="table", factory=lambda _: TableAttention(), capabilities=capabilities)]


def table_llm(
    *, vocabulary: str = "characters", options: Mapping[str, Mapping[str, Any]] | None = None, **keywords: Any
) -> Any:
    """An `LLM` that runs the table model and loads no installed plugin; keywords as for `LLM`.

    `vocabulary` is `characters` or `bytes` (see `TableSource`); `options` are plugins' own, by the plugin's name.
    """
    from octavo import LLM
    from octavo.plugins import resolve_settings

    plugins = [TablePlugin(), *keywords.pop("plugins", ())]
    defaults: dict[str, Any] = {
        "model": table_model_path(BYTES_SUFFIX if vocabulary == "bytes" else SUFFIX),
        "autoload_plugins": False,
        "dtype": "float32",
        "device": "cpu",
        "num_blocks": 256,
        "num_threads": 1,
        "adaptive": False,  # or else the clock has a say in which drafts are verified
    }
    config = resolve_settings(keywords={**defaults, **keywords, "plugins": options or {}}).config
    return LLM.from_config(config, plugins)
