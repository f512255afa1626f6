"""Tokenizers of the `tokenizers` library.

Owns: `HFTokenizer`. Must never know: files, requests, detokenisation of streams.

Special tokens: `encode` adds what the tokenizer itself adds (a BOS, for many). A rendered chat template already holds
its special tokens, so encode it with `add_special_tokens=False`. Text that was rendered elsewhere and already starts
with the BOS gets no second one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from octavo.errors import InvalidRequestError, ModelLoadError
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.spelling import Spelling
from octavo.spec import TokenizerData

logger = logging.getLogger(__name__)


class HFTokenizer:
    """A `Tokenizer` out of `TokenizerData`. Raises `ModelLoadError` if the data is broken."""

    def __init__(self, data: TokenizerData) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(data.tokenizer_json)
        except Exception as error:  # the library raises bare exceptions
            raise ModelLoadError(f"the model's tokenizer.json cannot be read: {error}") from error
        # A file may carry the padding and truncation of somebody's training run.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        named = [token for token in data.special_tokens.values() if self._tokenizer.token_to_id(token) is not None]
        self._tokenizer.add_special_tokens(named)  # a file may list them as ordinary tokens
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self._special_by_text = {token.content: i for i, token in added.items() if token.special}
        self._added = frozenset(added)
        self._spelling = Spelling(data.tokenizer_json)
        self.vocab_size = self._count_ids()
        self._bos_token = data.bos_token
        self.bos_token_id = self._id_of(data.bos_token, "bos_token")
        ids = (self._id_of(token, "eos_token") for token in data.eos_tokens)
        self.eos_token_ids = tuple(dict.fromkeys(i for i in ids if i is not None))
        self.chat_template = data.chat_template
        self._chat = ChatTemplate(data.chat_template, data.special_tokens) if data.chat_template else None

    def _count_ids(self) -> int:
        """The highest id and one. Looking each up is several times quicker than fetching the whole vocabulary."""
        size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if all(self._tokenizer.id_to_token(i) is not None for i in range(size)):
            return size
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1  # ids with gaps

    def _id_of(self, token: str | None, what: str) -> int | None:
        if token is None:
            return None
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            logger.warning("the tokenizer's %s %r is not in its vocabulary and is left out", what, token)
        return token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Raises `InvalidRequestError` (field `prompt`) for text that is no valid Unicode."""
        try:
            # unlike `encode` it lets other threads run meanwhile, and finds no offsets
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError("prompt", f"is not valid Unicode text: {error}") from error
        ids = encoding.ids
        doubled = add_special_tokens and self._bos_token is not None and text.startswith(self._bos_token)
        return ids[1:] if doubled and ids[:2] == [self.bos_token_id] * 2 else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids that the vocabulary lacks decode to nothing."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for an id that the vocabulary lacks."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Empty for special tokens and for ids that the vocabulary lacks."""
        token = self.token(token_id)
        if token_id in self._added:  # spelt as the text has it
            return b"" if token_id in self.special_token_ids else token.encode()
        return self._spelling.to_bytes(token)

    def special_token_id(self, text: str) -> int | None:
        return self._special_by_text.get(text)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        if self._chat is None:
            raise InvalidRequestError("messages", "the model has no chat template; send a prompt instead")
        return self._chat.render(messages, add_generation_prompt, variables)
