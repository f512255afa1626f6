"""Log probabilities in the two shapes that OpenAI has for them, and in vLLM's for prompts.

Owns: how a token is spelt, where it stands in the text, numbers that JSON can carry. Must never know: requests.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec

from octavo.request import TokenLogprobs
from octavo.spec import Tokenizer
from octavo_openai.apis.long_lists import do_in_parts, make_list

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

    def _text(self, token_id: int) -> str:
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
    """Makes the shape of completions for one choice, piece by piece; offsets go on from piece to piece.

    `turns` as `do_in_parts` has it, here and below.
    """

    def __init__(self, spelling: Spelling, num_top: int, special_shown: bool, turns: asyncio.Lock) -> None:
        """`special_shown`: special tokens are part of the output's text."""
        self._spelling, self._num_top, self._special_shown, self._turns = spelling, num_top, special_shown, turns
        self._offset = 0

    async def prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], text: str, special_shown: bool
    ) -> CompletionLogprobs:
        """The piece for a prompt that is echoed as `text`.

        Offsets are counted from its end: a BOS, or a space that decoding drops, is missing at its start.
        """
        piece = await self._piece(token_ids, logprobs, special_shown)
        surplus = self._offset - len(text)
        piece.text_offset = [max(0, offset - surplus) for offset in piece.text_offset]
        self._offset = len(text)
        return piece

    async def output(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        return await self._piece(token_ids, logprobs, self._special_shown)

    async def _piece(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], special_shown: bool
    ) -> CompletionLogprobs:
        piece = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])

        def add(part: Sequence[int]) -> None:
            for token_id in part:
                piece.tokens.append(self._spelling.text(token_id))
                piece.text_offset.append(self._offset)
                self._offset += self._spelling.num_chars(token_id, special_shown)

        await do_in_parts(token_ids, len(token_ids), self._turns, add)
        piece.token_logprobs = [None if entry is None else finite(entry.logprob) for entry in logprobs]
        piece.top_logprobs = await make_list(logprobs, num_entries(logprobs), self._turns, self._top)
        return piece

    def _top(self, entry: TokenLogprobs | None) -> dict[str, float] | None:
        if entry is None:
            return None
        text = self._spelling.text
        top = {text(i): finite(logprob) for i, logprob in entry.top[: self._num_top]}
        top[text(entry.token_id)] = finite(entry.logprob)
        return top


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    fields = CompletionLogprobs.__struct_fields__
    return CompletionLogprobs(**{name: getattr(first, name) + getattr(second, name) for name in fields})


async def content_logprobs(
    logprobs: Sequence[TokenLogprobs], spelling: Spelling, turns: asyncio.Lock
) -> list[ContentLogprob]:
    """The shape of chat messages."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        text, spelt = spelling.text(token_id), list(spelling.to_bytes(token_id))
        return TopLogprob(token=text, logprob=finite(logprob), bytes=spelt)

    def content(entry: TokenLogprobs) -> ContentLogprob:
        return ContentLogprob(
            token=spelling.text(entry.token_id),
            logprob=finite(entry.logprob),
            bytes=list(spelling.to_bytes(entry.token_id)),
            top_logprobs=[top(*pair) for pair in entry.top],
        )

    return await make_list(logprobs, num_entries(logprobs), turns, content)


async def prompt_logprobs(
    logprobs: Sequence[TokenLogprobs | None], num_top: int, spelling: Spelling, turns: asyncio.Lock
) -> PromptLogprobs:
    """vLLM's shape of a prompt's log probabilities."""

    def ranked(entry: TokenLogprobs | None) -> dict[str, PromptLogprob] | None:
        if entry is None:
            return None
        top = [(i, logprob, rank) for rank, (i, logprob) in enumerate(entry.top[:num_top], start=1)]
        return {
            str(i): PromptLogprob(logprob=finite(logprob), rank=rank, decoded_token=spelling.text(i))
            for i, logprob, rank in [*top, (entry.token_id, entry.logprob, entry.rank)]
        }

    return await make_list(logprobs, num_entries(logprobs), turns, ranked)


def num_entries(logprobs: Sequence[TokenLogprobs | None]) -> int:
    """Log probabilities in all: the tokens' own, and as many of the most likely ones' as the last token has."""
    last = logprobs[-1] if logprobs else None
    return 0 if last is None else len(logprobs) * (1 + len(last.top))


def finite(logprob: float) -> float:
    """A number that strict JSON can carry."""
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
