"""Contract of weight formats: what a path holds, whatever the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    """Number of token ids that decode to something; a model's vocabulary may be padded beyond it."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    special_token_ids: frozenset[int]
    chat_template: str | None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, in UTF-8, perhaps part of a character; empty for special tokens."""
        ...

    def special_token_id(self, text: str) -> int | None:
        """The id of the special token that is spelt `text`, if there is one."""
        ...

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Render chat messages to the text that the model was trained on.

        Raises `InvalidRequestError` (field `messages`) if the model has no template or the template refuses them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerData:
    """A tokenizer as data; core makes the `Tokenizer` out of it."""

    tokenizer_json: str
    """The serialised tokenizer in the format of the `tokenizers` library."""
    bos_token: str | None
    eos_tokens: tuple[str, ...]
    special_tokens: Mapping[str, str]
    """Names that chat templates use (`bos_token`, `eos_token`, `pad_token`, `unk_token`) to their spelling."""
    chat_template: str | None
    """Jinja source."""


class ModelSource(Protocol):
    """An opened model: configuration, tensors and tokenizer, under Hugging Face's names.

    Everything but `tensors` is quick and imports no torch: a process that computes nothing asks for it too.
    """

    path: str
    config: Mapping[str, Any]
    """The model's configuration; `architectures` names its class."""
    generation_config: Mapping[str, Any]
    """Default sampling options and EOS ids; may be empty."""

    def tensor_names(self) -> Sequence[str]: ...

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor once, on the CPU, converted to `dtype` where it is floating point.

        Raises `ModelLoadError` for a truncated or contradictory file.
        """
        ...

    def tokenizer(self) -> TokenizerData | Tokenizer:
        """The tokenizer as data, or ready made for a kind that the `tokenizers` library cannot hold.

        Raises `ModelLoadError` if the source has none.
        """
        ...
