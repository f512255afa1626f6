"""A model that says what its prompt tells it to: whatever stands between `<say>` and `</say>`, then it ends.

So a test can have a server say any text, tool calls and broken JSON included, and tell whose answer it got. The script
is read back from the paged KV cache; it is the last one in the sequence, and what follows it has been said already.
A prompt without one is answered with nothing. This module is itself a plugin, so another process can load it by name:

    llm = LLM.from_config(echo_config(), plugins=[octavo.testing.echo_model])
    llm.generate("Be polite. <say>Hello.</say>")  # "Hello."

Owns: the model, its tokenizer, `echo_config`. Must never know: engines, servers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from octavo.config import EngineConfig
from octavo.hookspecs import hookimpl
from octavo.spec import (
    AttentionBackendEntry,
    AttentionCapabilities,
    ModelEntry,
    TokenizerData,
    WeightFormatEntry,
)
from octavo.testing.table_model import TableAttention, TableModel, TableSource, logits_of

ARCHITECTURE = "OctavoEchoModel"
SUFFIX = ".octavo-echo"
MAX_MODEL_LEN = 4096
SPECIAL_TOKENS = ("<unk>", "<eos>", "<say>", "</say>")
_EOS, _SAY, _SAID = 1, 2, 3
_MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("Ġ", "the"), ("e", "r"), ("o", "n"))
_CERTAINTY = 30.0
"""What the logit of the scripted token is above the others'."""


def script_steps(token_ids: Sequence[int]) -> Iterator[int]:
    """The token that follows each of `token_ids`. After a script's end it begins anew, for `ignore_eos`."""
    start, script, num_said = None, [], 0
    for position, token_id in enumerate(token_ids):
        num_said += 1
        if token_id == _SAY:
            start = position + 1
        elif token_id == _SAID and start is not None:
            script, start, num_said = [*token_ids[start:position], _EOS], None, 0
        yield script[num_said % len(script)] if script else _EOS


class EchoAttention(TableAttention):
    """Gathers the history as the table model does, and reads the script out of it."""

    def values_of(self, history: Sequence[int], first: int, window: int | None) -> Sequence[int]:
        return list(islice(script_steps(history), first, None))


class EchoModel(TableModel):
    """The scripted token is all but certain; the rest is pseudo-random, so that log probabilities are not all alike."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        following = hidden[:, 0].to(torch.int64)
        logits = logits_of(hidden[:, 0], self.vocab_size)
        logits[torch.arange(len(following)), following] += _CERTAINTY
        return logits


class EchoSource(TableSource):
    """A `ModelSource` without weights; the vocabulary is that of a byte-level tokenizer."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        size = len(SPECIAL_TOKENS) + 256 + len(_MERGES)
        self.config = {
            "architectures": [ARCHITECTURE],
            "vocab_size": size,
            "max_position_embeddings": MAX_MODEL_LEN,
        }

    def tokenizer(self) -> TokenizerData:
        from octavo.testing.tiny_models import byte_tokenizer_json

        return TokenizerData(
            tokenizer_json=byte_tokenizer_json(SPECIAL_TOKENS, _MERGES),
            bos_token=None,
            eos_tokens=("<eos>",),
            special_tokens={"eos_token": "<eos>"},
            chat_template="{% for m in messages %}{{ m['content'] or '' }}{{ '' if loop.last else '\n' }}{% endfor %}",
        )


@hookimpl
def octavo_register_models() -> list[ModelEntry]:
    return [ModelEntry(name=ARCHITECTURE, factory=EchoModel)]


@hookimpl
def octavo_register_weight_formats() -> list[WeightFormatEntry]:
    return [WeightFormatEntry(name="echo", can_read=lambda path: path.endswith(SUFFIX), factory=EchoSource)]


@hookimpl
def octavo_register_attention_backends() -> list[AttentionBackendEntry]:
    capabilities = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), max_head_dim=1)
    return [AttentionBackendEntry(name="echo", factory=lambda _: EchoAttention(), capabilities=capabilities)]


def echo_config(**keywords: Any) -> EngineConfig:
    """A configuration that runs the echo model; keywords as for `LLM`. Needs this module among the plugins."""
    from octavo.plugins import resolve_settings

    path = os.path.join(tempfile.gettempdir(), f"octavo-{os.getuid()}{SUFFIX}")
    open(path, "a").close()
    defaults: Mapping[str, Any] = {
        "model": path,
        "autoload_plugins": False,
        "dtype": "float32",
        "device": "cpu",
        "num_blocks": 2048,
        "num_threads": 1,
        "attention": {"backend": "echo"},
    }
    return resolve_settings(keywords={**defaults, **keywords}).config
