"""What clients are told of the tokens that completions took, of prompts and of chats.

Owns: OpenAI's usage record, where a stream tells it. Must never know: what else is in a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from octavo_openai.apis.sampling import GenerationRequest
from octavo_openai.http.answers import DONE, frame
from octavo_openai.observation.token_count import TokenCount
from octavo_openai.options import ServerOptions


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def usage_of(count: TokenCount) -> Usage:
    details = UNSET if count.reasoning is None else CompletionTokensDetails(reasoning_tokens=count.reasoning)
    return Usage(
        prompt_tokens=count.prompt,
        completion_tokens=count.completion,
        total_tokens=count.prompt + count.completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=count.cached),
        completion_tokens_details=details,
    )


class ChunkChoice(Protocol):
    """What a chunk holds of a choice."""

    @property
    def tells(self) -> bool:
        """Whether it is anything but the silence of a token whose text is not certain yet."""
        ...


C = TypeVar("C", bound=ChunkChoice)
MakeChunk = Callable[[list[C], Usage | UnsetType | None], msgspec.Struct]
"""A chunk of these choices, with this for its usage."""


class StreamUsage:
    """Frames a stream's chunks, with the usage in none of them, in one more at the end, in each, or in all of these."""

    def __init__(self, body: GenerationRequest, options: ServerOptions, count: TokenCount) -> None:
        asked = body.stream_options
        self._in_each = asked is not None and bool(asked.continuous_usage_stats)
        self._at_end = options.usage_in_streams or (asked is not None and bool(asked.include_usage))
        self._count = count

    def frames(self, choices: Iterable[C], chunk: MakeChunk[C]) -> bytes:
        """A chunk for each choice that tells something, or, where the usage is told in each, for any."""
        usage: Usage | UnsetType | None = None if self._at_end else UNSET
        if self._in_each:
            usage = usage_of(self._count)
        return b"".join([frame(chunk([choice], usage)) for choice in choices if self._in_each or choice.tells])

    def end(self, chunk: MakeChunk[C]) -> bytes:
        """What follows the last choice."""
        return frame(chunk([], usage_of(self._count))) + DONE if self._at_end else DONE
