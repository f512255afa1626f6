"""The built-in logits processors, registered through the same hook as a stranger's.

Each sees the drafts before a row as history, so that speculation changes nothing.
Owns: penalties, logit bias, allowed tokens, bad words, minimum length. Must never know: batches, drafters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from octavo.spec import LogitRow, ProcessorContext, SequenceView, Tokenizer

State = TypeVar("State")


class PerSequence(Generic[State]):
    """A processor whose whole state is one value for each sequence, made once by `start`."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self._states: dict[int, State] = {}

    def start(self, sequence: SequenceView) -> State | None:
        """The sequence's state, or None if this processor does not concern it."""
        raise NotImplementedError

    def change(self, logits: torch.Tensor, row: LogitRow, state: State) -> None:
        """Change one row; `logits` [vocab_size]."""
        raise NotImplementedError

    def attach(self, sequence: SequenceView) -> bool:
        state = self.start(sequence)
        if state is None:
            return False
        self._states[sequence.sequence_id] = state
        return True

    def prepare(self, rows: Sequence[LogitRow]) -> None: ...

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitRow]) -> None:
        for row in rows:
            self.change(logits[row.index], row, self._states[row.sequence.sequence_id])

    def accept(self, sequence: SequenceView, token_ids: Sequence[int]) -> None: ...

    def release(self, sequence_id: int) -> None:
        self._states.pop(sequence_id, None)

    def tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype, device=self.context.device)


class Penalties(PerSequence[tuple[torch.Tensor, torch.Tensor]]):
    """Presence, frequency and repetition penalty (the last as in Keskar et al. 2019, section 4.1).

    State: whether the prompt holds each token (bool), and how often the output does (int32); both [vocab_size].
    """

    def start(self, sequence: SequenceView) -> tuple[torch.Tensor, torch.Tensor] | None:
        p = sequence.request.sampling_params
        if not (p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1):
            return None
        in_prompt = torch.zeros(self.context.vocab_size, dtype=torch.bool, device=self.context.device)
        in_prompt[self.tensor(sequence.prompt_token_ids)] = True
        counts = torch.zeros(self.context.vocab_size, dtype=torch.int32, device=self.context.device)
        self._count(counts, sequence.output_token_ids)
        return in_prompt, counts

    def change(self, logits: torch.Tensor, row: LogitRow, state: tuple[torch.Tensor, torch.Tensor]) -> None:
        in_prompt, counts = state
        if row.draft_token_ids:
            counts = counts.clone()
            self._count(counts, row.draft_token_ids)
        p = row.sequence.request.sampling_params
        generated = counts > 0
        if p.repetition_penalty != 1:
            penalised = torch.where(logits > 0, logits / p.repetition_penalty, logits * p.repetition_penalty)
            logits.copy_(torch.where(in_prompt | generated, penalised, logits))
        logits.sub_(counts, alpha=p.frequency_penalty)
        logits.sub_(generated.to(logits.dtype), alpha=p.presence_penalty)

    def accept(self, sequence: SequenceView, token_ids: Sequence[int]) -> None:
        self._count(self._states[sequence.sequence_id][1], token_ids)

    def _count(self, counts: torch.Tensor, token_ids: Sequence[int] | np.ndarray) -> None:
        ids = self.tensor(token_ids)
        counts.index_add_(0, ids, torch.ones_like(ids, dtype=counts.dtype))


class LogitBias(PerSequence[tuple[torch.Tensor, torch.Tensor]]):
    """Adds `logit_bias`. State: token ids and what is added to them."""

    def start(self, sequence: SequenceView) -> tuple[torch.Tensor, torch.Tensor] | None:
        bias = sequence.request.sampling_params.logit_bias
        if not bias:
            return None
        return self.tensor(list(bias)), self.tensor(list(bias.values()), torch.float32)

    def change(self, logits: torch.Tensor, row: LogitRow, state: tuple[torch.Tensor, torch.Tensor]) -> None:
        logits[state[0]] += state[1]


class AllowedTokens(PerSequence[torch.Tensor]):
    """Forbids all but `allowed_token_ids`. State: what is forbidden, bool [vocab_size]."""

    def start(self, sequence: SequenceView) -> torch.Tensor | None:
        allowed = sequence.request.sampling_params.allowed_token_ids
        if allowed is None:
            return None
        forbidden = torch.ones(self.context.vocab_size, dtype=torch.bool, device=self.context.device)
        forbidden[self.tensor(allowed)] = False
        return forbidden

    def change(self, logits: torch.Tensor, row: LogitRow, state: torch.Tensor) -> None:
        logits.masked_fill_(state, -torch.inf)


@dataclass(frozen=True, slots=True)
class Spellings:
    """How the bad words of a request are spelt in tokens."""

    single: tuple[int, ...]
    """Words of one token."""
    longer: Mapping[int, Sequence[tuple[tuple[int, ...], int]]]
    """(tokens before the last, last token) of the others, by the token before the last."""
    longest_prefix: int


class BadWords(PerSequence[Spellings]):
    """Forbids the token that would complete a bad word. A word counts at the start of a text and after a space."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._last: tuple[Sequence[str], Spellings] | None = None
        """Spelling takes long beside a step, and the sequences of a request come together."""

    def start(self, sequence: SequenceView) -> Spellings | None:
        words = sequence.request.sampling_params.bad_words
        if not words or self.context.tokenizer is None:
            return None
        if self._last is None or self._last[0] != words:
            self._last = words, self._spell(words, self.context.tokenizer)
        return self._last[1]

    def change(self, logits: torch.Tensor, row: LogitRow, state: Spellings) -> None:
        tail = row.sequence.output_token_ids[-state.longest_prefix :].tolist() if state.longest_prefix else []
        history = (*tail, *row.draft_token_ids)
        completed = state.longer.get(history[-1], ()) if history else ()
        forbidden = [last for prefix, last in completed if history[len(history) - len(prefix) :] == prefix]
        if forbidden or state.single:
            logits[self.tensor([*state.single, *forbidden])] = -torch.inf

    def _spell(self, words: Sequence[str], tokenizer: Tokenizer) -> Spellings:
        spellings = {
            tuple(tokenizer.encode(text, add_special_tokens=False))
            for word in words
            for text in (word, " " + word.lstrip())
        }
        longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for ids in sorted(spellings):
            if len(ids) > 1:
                longer.setdefault(ids[-2], []).append((ids[:-1], ids[-1]))
        single = tuple(sorted(ids[0] for ids in spellings if len(ids) == 1))
        return Spellings(single, longer, max((len(ids) - 1 for ids in spellings), default=0))


class MinTokens(PerSequence[torch.Tensor]):
    """Forbids everything that would end the sequence before `min_tokens`. State: the ids that would."""

    def start(self, sequence: SequenceView) -> torch.Tensor | None:
        request = sequence.request
        if not request.sampling_params.min_tokens or not request.stop_token_ids:
            return None
        return self.tensor(sorted(request.stop_token_ids))

    def change(self, logits: torch.Tensor, row: LogitRow, state: torch.Tensor) -> None:
        num_generated = len(row.sequence.output_token_ids) + len(row.draft_token_ids)
        if num_generated < row.sequence.request.sampling_params.min_tokens:
            logits[state] = -torch.inf
