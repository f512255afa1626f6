"""What a user submitted, and what comes back. Records only.

Owns: prompts, `Request` and the output records. Must never know: how a request is scheduled or computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NotRequired, TypedDict

from octavo.sampling_params import SamplingParams


class TextPrompt(TypedDict):
    """A text; the tokenizer adds special tokens, such as BOS."""

    prompt: str
    cache_salt: NotRequired[str | None]
    """Only prompts with the same salt share entries of the prefix cache."""


class TokensPrompt(TypedDict):
    """Token ids, to which nothing is added."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str | None]
    """The text that they spell; only shown in outputs."""
    cache_salt: NotRequired[str | None]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
"""A text, token ids, or either as a mapping with further fields."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An EOS id, a stop token id or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the length of the model."""
    ABORT = "abort"
    """The user withdrew the request."""
    ERROR = "error"
    """Something failed; the output's `error` says what."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Prompt positions that stand for what an encoder made of an image, a sound or other input."""

    start: int
    num_tokens: int
    content_hash: str
    """Digest of the input: the tokens of two pictures are the same, their KV is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request. Never changes after submission."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    seed: int
    """The seed in force: the request's own, or one that the engine drew."""
    eos_token_ids: frozenset[int]
    """Ids that end the sequence; empty under `ignore_eos`."""
    max_tokens: int
    """`max_tokens` of the request, cut to what the model's length leaves room for."""
    arrival_time: float
    """Seconds on the clock of `time.monotonic`."""
    prompt: str | None = None
    cache_salt: str | None = None
    """Prefix cache entries are shared only between requests of one salt."""
    adapter: str | None = None
    """Name of the adapter (LoRA) that the request runs with; part of its prefix hashes."""
    processors: tuple[str, ...] = ()
    """Logits processors that it asks for, besides those that see every request."""
    trace_headers: Mapping[str, str] | None = None
    """W3C Trace Context of the client (`traceparent`, `tracestate`), for observers that trace."""
    media: tuple[MediaSpan, ...] = ()
    """Where other inputs than text stand in the prompt; part of the hashes of the blocks that they reach."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Every id that ends the sequence: EOS ids and the request's own stop ids."""
        return self.eos_token_ids.union(self.sampling_params.stop_token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, from the model's raw distribution (no penalty, no temperature)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...]
    """The most likely (token id, log probability) pairs, most likely first; as many as were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Where the time of a request went. Seconds."""

    queue_time: float | None = None
    """From arrival until the first step that computes some of it."""
    prefill_time: float | None = None
    """From there to its first token."""
    decode_time: float | None = None
    """From the first token to the last."""
    end_to_end_time: float | None = None
    """From arrival until it ended, in whatever way; None while it runs."""
    time_to_first_token: float | None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache."""
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a request: text and tokens so far or, in a stream of deltas, what is new."""

    index: int
    """Which of the request's `n` completions."""
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for EOS and for length."""
    error: str | None = None
    error_field: str | None = None
    """The request's field at fault, if it could not be served as it was asked (a grammar that cannot be compiled)."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request with its completions, so far or, in a stream of deltas, since the output before."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One for each prompt token; the first has none."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
