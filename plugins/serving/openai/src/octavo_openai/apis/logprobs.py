"""Log probabilities in the two shapes that OpenAI has for them, and in vLLM's for prompts.

Owns: how a token is spelt, where it stands in the text, numbers that JSON can carry. Must never know: requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from octavo.request import TokenLogprobs
from octavo.spec import Tokenizer
from octavo_openai.http.long_lists import joined, listed, parted

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
    """How tokens are written out. Remembers it, for those that are likely at one position are so at many."""

    def __init__(self, tokenizer: Tokenizer, as_token_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_token_ids = as_token_ids
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str] = {}

    def to_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; a special token as it is spelt."""
        spelt = self._bytes.get(token_id)
        if spelt is None:
            spelt = self._tokenizer.token_bytes(token_id) or self._tokenizer.token(token_id).encode()
            self._bytes[token_id] = spelt
        return spelt

    def text(self, token_id: int) -> str:
        """As a text; a part of a character as `bytes:\\xNN…`, so that no two tokens are spelt alike."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._text(token_id)
        return text

    def num_chars(self, token_id: int, special_shown: bool) -> int:
        """Characters that begin with this token."""
        if not special_shown and token_id in self._tokenizer.special_token_ids:
            return 0
        return sum(byte & 0xC0 != 0x80 for byte in self.to_bytes(token_id))

    def _text(self, token_id: int) -> str:
        if self._as_token_ids:
            return f"token_id:{token_id}"
        spelt = self.to_bytes(token_id)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    text: str
    special_shown: bool
    """Whether special tokens are part of `text`."""


class LegacyLogprobs:
    """Makes the shape of completions for one choice, piece by piece; offsets go on from piece to piece."""

    def __init__(self, spelling: Spelling, num_top: int, special_shown: bool) -> None:
        """`special_shown`: special tokens are part of the output's text."""
        self._spelling, self._num_top, self._special_shown = spelling, num_top, special_shown
        self._offset = 0

    def told(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], prompt: EchoedPrompt | None = None
    ) -> CompletionLogprobs:
        """The next piece of the output, and before the first one the prompt if it is echoed."""
        all_ids, all_logprobs = token_ids, logprobs
        if prompt is not None:
            all_ids, all_logprobs = (*prompt.token_ids, *token_ids), (*prompt.logprobs, *logprobs)
        num_ids = len(all_ids)
        if prompt is None:
            offsets = listed(token_ids, num_ids, self._output_offsets)
        else:
            after = parted(token_ids, len(token_ids), self._output_offsets)
            offsets = joined(chain(self._prompt_offsets(prompt), after), num_ids)
        return CompletionLogprobs(
            tokens=listed(all_ids, num_ids, self._tokens),
            token_logprobs=listed(all_logprobs, len(all_logprobs), _own_logprobs),
            top_logprobs=listed(all_logprobs, len(all_logprobs) * (self._num_top + 1), self._top_logprobs),
            text_offset=offsets,
        )

    def _tokens(self, token_ids: Sequence[int]) -> list[str]:
        text = self._spelling.text
        return [text(token_id) for token_id in token_ids]

    def _top_logprobs(self, logprobs: Sequence[TokenLogprobs | None]) -> list[dict[str, float] | None]:
        text = self._spelling.text
        tops: list[dict[str, float] | None] = []
        for entry in logprobs:
            if entry is None:
                tops.append(None)
                continue
            top = {text(i): finite(logprob) for i, logprob in entry.top[: self._num_top]}
            top[text(entry.token_id)] = finite(entry.logprob)
            tops.append(top)
        return tops

    def _output_offsets(self, token_ids: Sequence[int]) -> list[int]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += self._spelling.num_chars(token_id, self._special_shown)
        return offsets

    def _prompt_offsets(self, prompt: EchoedPrompt) -> Iterator[list[int]]:
        """Counted from the text's end: a BOS, or a space that decoding drops, is missing at its start."""
        offset = self._offset = len(prompt.text)

        def sizes(token_ids: Sequence[int]) -> list[int]:
            return [self._spelling.num_chars(token_id, prompt.special_shown) for token_id in token_ids]

        for part in parted(prompt.token_ids, len(prompt.token_ids), sizes):
            offset -= sum(part)
            yield []
        for part in parted(prompt.token_ids, len(prompt.token_ids), sizes):
            offsets = []
            for size in part:
                offsets.append(max(0, offset))
                offset += size
            yield offsets


def _own_logprobs(logprobs: Sequence[TokenLogprobs | None]) -> list[float | None]:
    return [None if entry is None else finite(entry.logprob) for entry in logprobs]


def chat_logprobs(logprobs: Sequence[TokenLogprobs], spelling: Spelling) -> ChatLogprobs:
    """The shape of chat messages."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        text, spelt = spelling.text(token_id), list(spelling.to_bytes(token_id))
        return TopLogprob(token=text, logprob=finite(logprob), bytes=spelt)

    def content(part: Sequence[TokenLogprobs]) -> list[ContentLogprob]:
        return [
            ContentLogprob(
                token=spelling.text(entry.token_id),
                logprob=finite(entry.logprob),
                bytes=list(spelling.to_bytes(entry.token_id)),
                top_logprobs=[top(*pair) for pair in entry.top],
            )
            for entry in part
        ]

    return ChatLogprobs(content=listed(logprobs, num_entries(logprobs), content))


def prompt_logprobs(logprobs: Sequence[TokenLogprobs | None], num_top: int, spelling: Spelling) -> PromptLogprobs:
    """vLLM's shape of a prompt's log probabilities."""

    def ranked(part: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
        return [None if entry is None else _ranked(entry, num_top, spelling) for entry in part]

    return listed(logprobs, len(logprobs) * (num_top + 1), ranked)


def _ranked(entry: TokenLogprobs, num_top: int, spelling: Spelling) -> dict[str, PromptLogprob]:
    ranked = [(i, logprob, rank) for rank, (i, logprob) in enumerate(entry.top[:num_top], start=1)]
    return {
        str(i): PromptLogprob(logprob=finite(logprob), rank=rank, decoded_token=spelling.text(i))
        for i, logprob, rank in [*ranked, (entry.token_id, entry.logprob, entry.rank)]
    }


def num_entries(logprobs: Sequence[TokenLogprobs | None] | None) -> int:
    """Log probabilities in all: the tokens' own, and as many of the most likely ones' as the last token has."""
    last = logprobs[-1] if logprobs else None
    return 0 if logprobs is None or last is None else len(logprobs) * (1 + len(last.top))


def finite(logprob: float) -> float:
    """A number that strict JSON can carry."""
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
