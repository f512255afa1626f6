"""Log probabilities in the two shapes that OpenAI has for them, and in vLLM's for prompts.

Owns: how a token is spelt, where it stands in the text, numbers that JSON can carry. Must never know: requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from octavo.request import TokenLogprobs
from octavo.spec import Tokenizer

IMPOSSIBLE = -9999.0
"""Stands for what JSON has no number for: the log of nothing."""


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry for each token of a message, whatever it became: content, reasoning or a call."""

    content: list[ContentLogprob]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Four lists, an entry for each token; the first of a prompt has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, kw_only=True):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each prompt token but the first: the token itself and the most likely ones, by token id."""


class Spelling:
    """How tokens are written out."""

    def __init__(self, tokenizer: Tokenizer, as_token_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_token_ids = as_token_ids

    def to_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; a special token as it is spelt."""
        return self._tokenizer.token_bytes(token_id) or self._tokenizer.token(token_id).encode()

    def text(self, token_id: int) -> str:
        """As a text; a part of a character as `bytes:\\xNN…`, so that no two tokens are spelt alike."""
        if self._as_token_ids:
            return f"token_id:{token_id}"
        spelt = self.to_bytes(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)

    def num_chars(self, token_id: int, special_shown: bool) -> int:
        """Characters that begin with this token."""
        if not special_shown and token_id in self._tokenizer.special_token_ids:
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self.to_bytes(token_id))


class LegacyLogprobs:
    """Makes the shape of completions for one choice, piece by piece; offsets go on from piece to piece."""

    def __init__(self, spelling: Spelling, num_top: int, special_shown: bool) -> None:
        """`special_shown`: special tokens are part of the output's text."""
        self._spelling, self._num_top, self._special_shown = spelling, num_top, special_shown
        self._offset = 0

    def prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], text: str, special_shown: bool
    ) -> CompletionLogprobs:
        """The piece for a prompt that is echoed as `text`.

        Offsets are counted from its end: a BOS, or a space that decoding drops, is missing at its start.
        """
        sizes = [self._spelling.num_chars(token_id, special_shown) for token_id in token_ids]
        self._offset = len(text)
        offsets, left = [], len(text)
        for size in reversed(sizes):
            left -= size
            offsets.append(max(0, left))
        return self._piece(token_ids, logprobs, offsets[::-1])

    def output(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += self._spelling.num_chars(token_id, self._special_shown)
        return self._piece(token_ids, logprobs, offsets)

    def _piece(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], offsets: list[int]
    ) -> CompletionLogprobs:
        text = self._spelling.text
        tops: list[dict[str, float] | None] = []
        for entry in logprobs:
            if entry is None:
                tops.append(None)
                continue
            top = {text(i): finite(logprob) for i, logprob in entry.top[: self._num_top]}
            top[text(entry.token_id)] = finite(entry.logprob)
            tops.append(top)
        return CompletionLogprobs(
            tokens=[text(token_id) for token_id in token_ids],
            token_logprobs=[None if entry is None else finite(entry.logprob) for entry in logprobs],
            top_logprobs=tops,
            text_offset=offsets,
        )


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    fields = CompletionLogprobs.__struct_fields__
    return CompletionLogprobs(**{name: getattr(first, name) + getattr(second, name) for name in fields})


def chat_logprobs(logprobs: Sequence[TokenLogprobs], spelling: Spelling) -> ChatLogprobs:
    """The shape of chat messages."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        text, spelt = spelling.text(token_id), list(spelling.to_bytes(token_id))
        return TopLogprob(token=text, logprob=finite(logprob), bytes=spelt)

    content = [
        ContentLogprob(
            token=spelling.text(entry.token_id),
            logprob=finite(entry.logprob),
            bytes=list(spelling.to_bytes(entry.token_id)),
            top_logprobs=[top(*pair) for pair in entry.top],
        )
        for entry in logprobs
    ]
    return ChatLogprobs(content=content)


def prompt_logprobs(logprobs: Sequence[TokenLogprobs | None], num_top: int, spelling: Spelling) -> PromptLogprobs:
    """vLLM's shape of a prompt's log probabilities."""
    result: PromptLogprobs = []
    for entry in logprobs:
        if entry is None:
            result.append(None)
            continue
        ranked = [(i, logprob, rank) for rank, (i, logprob) in enumerate(entry.top[:num_top], start=1)]
        entries = {
            str(i): PromptLogprob(logprob=finite(logprob), rank=rank, decoded_token=spelling.text(i))
            for i, logprob, rank in [*ranked, (entry.token_id, entry.logprob, entry.rank)]
        }
        result.append(entries)
    return result


def finite(logprob: float) -> float:
    """A number that strict JSON can carry."""
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
