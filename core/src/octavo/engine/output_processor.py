"""From committed tokens to what the user sees: text, stop strings, log probabilities, the outputs of `n` completions.

Owns: one state for each live request. Must never know: scheduling, devices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from octavo.engine.detokenizer import IncrementalDetokenizer, StopStringMatcher
from octavo.request import (
    CompletionOutput,
    FinishReason,
    Request,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from octavo.spec import Tokenizer
from octavo.step import SequenceUpdate, TokenTimes

logger = logging.getLogger(__name__)


class OutputKind(Enum):
    """How much each output of a request holds."""

    CUMULATIVE = auto()
    """All so far, after each step."""
    DELTA = auto()
    """What is new since the last output, after each step."""
    FINAL = auto()
    """All, once, when the request has finished."""


@dataclass(slots=True)
class Completion:
    """One sequence on its way to the user."""

    sequence_id: int
    index: int
    request: Request
    detokenizer: IncrementalDetokenizer | None
    matcher: StopStringMatcher | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    error_field: str | None = None
    last_token_time: float | None = None
    num_shown_tokens: int = 0
    num_shown_chars: int = 0
    num_preemptions: int = 0

    def take(self, update: SequenceUpdate) -> None:
        """Add an update's tokens, up to a stop string if one is met."""
        self.num_preemptions = update.num_preemptions
        last = len(update.token_ids) - 1
        for i, token_id in enumerate(update.token_ids):
            self.token_ids.append(token_id)
            if update.logprobs:
                self.logprobs.append(update.logprobs[i])
                self.cumulative_logprob += update.logprobs[i].logprob
            ends_by_token = (
                i == last
                and update.finish_reason is FinishReason.STOP
                and token_id in self.request.stop_token_ids  # not so where a processor says that the output is complete
            )
            hidden = ends_by_token and not self.request.sampling_params.include_stop_str_in_output
            if self.detokenizer is not None and not hidden:
                self._show(self.detokenizer.push((token_id,)))
            if self.finish_reason is not None:
                return
        if update.finish_reason is not None:
            self.error_field = update.error_field
            self.finish(update.finish_reason, update.stop_reason, update.error)

    def finish(self, reason: FinishReason, stop_reason: str | int | None = None, error: str | None = None) -> None:
        """End it; text that was held back comes out, unless a stop string ends in it."""
        if self.detokenizer is not None:
            self._show(self.detokenizer.flush())
            if self.finish_reason is None and self.matcher is not None:
                self.text += self.matcher.flush()
        if self.finish_reason is None:
            self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error

    def fail(self, error: str) -> None:
        """End it as it stands."""
        self.finish_reason, self.stop_reason, self.error = FinishReason.ERROR, None, error

    def _show(self, piece: str) -> None:
        if self.matcher is None or not piece:
            self.text += piece
            return
        enabled = len(self.token_ids) > self.request.sampling_params.min_tokens
        shown, stopped_by = self.matcher.push(piece, enabled)
        self.text += shown
        if stopped_by is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, stopped_by

    def output(self, kind: OutputKind) -> CompletionOutput:
        first_token, first_char = 0, 0
        if kind is OutputKind.DELTA:
            first_token, first_char = self.num_shown_tokens, self.num_shown_chars
            self.num_shown_tokens, self.num_shown_chars = len(self.token_ids), len(self.text)
        wanted = self.request.sampling_params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self.text[first_char:],
            token_ids=tuple(self.token_ids[first_token:]),
            cumulative_logprob=self.cumulative_logprob if wanted else None,
            logprobs=tuple(self.logprobs[first_token:]) if wanted else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
            error_field=self.error_field,
        )


@dataclass(slots=True)
class RequestState:
    """A live request with its completions."""

    request: Request
    kind: OutputKind
    completions: list[Completion]
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    complete_prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """All of them in order, once there is a first token: nothing is added then."""
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    """Set as soon as every completion has ended."""
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        return self.finished_time is not None

    @property
    def is_due(self) -> bool:
        """Whether its owner wants an output now."""
        return self.finished or self.kind is not OutputKind.FINAL

    def note(self, update: SequenceUpdate) -> None:
        """Keep an update's times, counts and prompt log probabilities."""
        self.prompt_logprobs.update(update.prompt_logprobs)
        if self.first_scheduled_time is None:
            self.first_scheduled_time = update.first_scheduled_time
            self.num_cached_tokens = update.num_cached_tokens

    def output(self, kind: OutputKind | None = None) -> RequestOutput:
        """What its owner is shown now; deltas go on from the last one. `kind` overrides the request's own."""
        r = self.request
        return RequestOutput(
            request_id=r.request_id,
            prompt=r.prompt,
            prompt_token_ids=r.prompt_token_ids,
            outputs=tuple(c.output(kind or self.kind) for c in self.completions),
            finished=self.finished,
            prompt_logprobs=self._all_prompt_logprobs(),
            metrics=RequestMetrics(
                queue_time=_between(r.arrival_time, self.first_scheduled_time),
                prefill_time=_between(self.first_scheduled_time, self.first_token_time),
                decode_time=_between(self.first_token_time, self.last_token_time),
                end_to_end_time=_between(r.arrival_time, self.finished_time),
                time_to_first_token=_between(r.arrival_time, self.first_token_time),
                num_cached_tokens=self.num_cached_tokens,
                num_preemptions=sum(c.num_preemptions for c in self.completions),
            ),
        )

    def _all_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        r = self.request
        if r.sampling_params.prompt_logprobs is None or self.complete_prompt_logprobs is not None:
            return self.complete_prompt_logprobs
        found = tuple(self.prompt_logprobs.get(i) for i in range(len(r.prompt_token_ids)))
        if self.first_token_time is not None:
            self.complete_prompt_logprobs = found
        return found


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True)
class Progress:
    """What the updates of one step changed."""

    changed: list[RequestState]
    stopped: list[int]
    """Sequences that a stop string ended while the core still runs them."""
    times: TokenTimes


class OutputProcessor:
    """All live requests of one engine."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[str, RequestState] = {}
        self._by_sequence: dict[int, tuple[RequestState, Completion]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests.values())

    def add(self, request: Request, sequence_ids: Sequence[int], kind: OutputKind) -> RequestState:
        """Expect updates for these sequences, one for each completion."""
        params = request.sampling_params
        completions = []
        for index, sequence_id in enumerate(sequence_ids):
            detokenizer = matcher = None
            if params.detokenize and self._tokenizer is not None:
                detokenizer = IncrementalDetokenizer(
                    self._tokenizer, request.prompt_token_ids, params.skip_special_tokens
                )
                if params.stop:
                    matcher = StopStringMatcher(tuple(params.stop), params.include_stop_str_in_output)
            completions.append(Completion(sequence_id, index, request, detokenizer, matcher))
        state = self._requests[request.request_id] = RequestState(request, kind, completions)
        for completion in completions:
            self._by_sequence[completion.sequence_id] = (state, completion)
        return state

    def take(self, updates: Sequence[SequenceUpdate]) -> Progress:
        """Turn a step's updates into text."""
        now = time.monotonic()
        changed: dict[str, RequestState] = {}
        stopped: list[int] = []
        first: list[float] = []
        gaps: list[float] = []
        for update in updates:
            known = self._by_sequence.get(update.sequence_id)
            if known is None:
                continue
            state, completion = known
            state.note(update)
            if update.token_ids:
                _note_times(state, completion, len(update.token_ids), now, first, gaps)
            try:
                completion.take(update)
            except Exception as fault:
                _contain(fault, completion)
            changed[state.request.request_id] = state
            if completion.finish_reason is not None:
                del self._by_sequence[update.sequence_id]
                if update.finish_reason is None:
                    stopped.append(update.sequence_id)
                self._end_if_finished(state)
        return Progress(list(changed.values()), stopped, TokenTimes(tuple(first), tuple(gaps)))

    def abort(self, request_id: str, error: str | None = None) -> tuple[RequestState | None, list[int]]:
        """End a request, failed if there is an error; what it has come to, and the sequences to stop.

        Nothing for an unknown id.
        """
        state = self._requests.get(request_id)
        if state is None:
            return None, []
        live = [c for c in state.completions if c.finish_reason is None]
        for completion in live:
            try:
                completion.finish(FinishReason.ABORT if error is None else FinishReason.ERROR, error=error)
            except Exception as fault:
                _contain(fault, completion)
            del self._by_sequence[completion.sequence_id]
        self._end_if_finished(state)
        return state, [c.sequence_id for c in live]

    def _end_if_finished(self, state: RequestState) -> None:
        if all(c.finish_reason is not None for c in state.completions):
            state.finished_time = time.monotonic()
            del self._requests[state.request.request_id]


def _contain(fault: Exception, completion: Completion) -> None:
    """End what a tokenizer's fault befell, so that no other request meets it."""
    logger.error("request %r: its output failed", completion.request.request_id, exc_info=fault)
    completion.fail(f"turning tokens into text failed: {fault!r}")


def _note_times(
    state: RequestState, completion: Completion, num_tokens: int, now: float, first: list[float], gaps: list[float]
) -> None:
    """Keep when tokens came; time to first token and time between tokens go to `first` and `gaps`."""
    if state.first_token_time is None:
        state.first_token_time = now
        first.append(now - state.request.arrival_time)
    if completion.last_token_time is None:
        num_tokens -= 1  # the first has none before it
    since = now - (completion.last_token_time or now)
    gaps += [since / max(num_tokens, 1)] * num_tokens
    state.last_token_time = completion.last_token_time = now
