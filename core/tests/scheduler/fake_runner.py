"""A scripted runner. It keeps what a real one keeps, simulates physical slots, and checks every plan.

The KV of a position is stood for by (generation of the weights, hash of the tokens and conditions up to it). All of a
step's KV is written before any of it is read, as attention backends do; then each scheduled token's whole context
must be in the slots that the block tables name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from octavo.kv import KVCacheGroup
from octavo.request import Request, TokenLogprobs
from octavo.step import ScheduledSequence, SchedulerOutput, SequenceResult, StepResult

VOCABULARY = 7


def number(name: str | None) -> int:
    """Stands for a name of one letter; the hashes of ints, unlike those of strings, are the same in every run."""
    return 0 if name is None else ord(name)


def next_token(request: Request, child_index: int, tokens: list[int]) -> int:
    """The model: a function of all tokens so far."""
    return hash((request.seed, child_index, number(request.adapter), tuple(tokens))) % VOCABULARY


def naive_generate(request: Request, child_index: int, max_model_len: int) -> tuple[list[int], str, int | None]:
    """Output, finish reason and stop reason of a request, one token after another with nothing else around."""
    tokens, params = list(request.prompt_token_ids), request.sampling_params
    output: list[int] = []
    while True:
        token = next_token(request, child_index, tokens)
        tokens.append(token)
        output.append(token)
        if len(output) > params.min_tokens:
            if token in request.eos_token_ids:
                return output, "stop", None
            if token in params.stop_token_ids:
                return output, "stop", token
        if len(output) == request.max_tokens or len(tokens) == max_model_len:
            return output, "length", None


def logprob_of(tokens: list[int]) -> TokenLogprobs:
    """Stands for the log probabilities of the last one of `tokens`."""
    return TokenLogprobs(tokens[-1], -float(len(tokens)), 1, ())


@dataclass
class Held:
    """What a runner knows of an attached sequence."""

    request: Request
    child_index: int
    tokens: list[int]
    tables: list[list[int]] | None = None  # None: not running
    generation: int = 0  # weights when it was started


@dataclass
class FakeRunner:
    groups: tuple[KVCacheGroup, ...]
    rng: random.Random
    max_model_len: int
    max_drafts: int = 0
    lookahead: int = 0
    error_rate: float = 0.0
    generation: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    slots: list[dict[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    num_accepted: int = 0
    num_cached: int = 0

    def __post_init__(self) -> None:
        self.slots = [{} for _ in self.groups]

    def attach(self, sequence_id: int, request: Request, child_index: int) -> None:
        assert sequence_id not in self.held
        self.held[sequence_id] = Held(request, child_index, list(request.prompt_token_ids))

    def run(self, plan: SchedulerOutput) -> StepResult:
        for sequence_id in plan.released:
            del self.held[sequence_id]  # KeyError: released twice, or never attached
        for sequence_id in plan.preempted:
            assert self.held[sequence_id].tables is not None, "preempted, but it did not run"
            self.held[sequence_id].tables = None
        for start in plan.started:
            held = self.held[start.sequence_id]
            assert held.tables is None, "started twice"
            assert held.tokens[len(held.request.prompt_token_ids) :] == list(start.output_token_ids)
            held.tables = [[] for _ in self.groups]
            held.generation = self.generation
        assert len({s.sequence_id for s in plan.scheduled}) == len(plan.scheduled)
        started = {start.sequence_id for start in plan.started}
        for planned in plan.scheduled:
            if planned.sequence_id in started:
                self.num_cached += planned.num_computed_tokens
            self._write(planned)
        for planned in plan.scheduled:
            self._read(planned)
        return StepResult(plan.step_id, tuple(self._result(planned) for planned in plan.scheduled))

    def _history(self, held: Held, tokens: list[int]) -> int:
        return hash((number(held.request.adapter), number(held.request.cache_salt), tuple(tokens)))

    def _tokens(self, planned: ScheduledSequence) -> tuple[Held, list[int]]:
        held = self.held[planned.sequence_id]
        tokens = held.tokens + list(planned.draft_token_ids)
        end = planned.num_computed_tokens + planned.num_scheduled_tokens
        assert end <= len(tokens)
        if planned.draft_token_ids:
            assert end == len(tokens), "drafts before the prompt is computed"
            assert planned.num_computed_tokens == len(held.tokens) - 1, "drafts before the prompt is computed"
            room = min(len(held.request.prompt_token_ids) + held.request.max_tokens, self.max_model_len)
            assert len(tokens) < room, "drafts past the end"
        return held, tokens[:end]

    def _write(self, planned: ScheduledSequence) -> None:
        held, tokens = self._tokens(planned)
        assert held.tables is not None, "scheduled, but never started"
        assert planned.num_scheduled_tokens > 0
        for table, new, group, slots in zip(held.tables, planned.new_block_ids, self.groups, self.slots, strict=True):
            table += new
            size = group.spec.block_size
            reach = min(len(tokens) + self.lookahead, self.max_model_len)
            assert len(table) >= group.policy.blocks_for(reach), "no block for a scheduled or lookahead token"
            for position in range(planned.num_computed_tokens, len(tokens)):
                block_id = table[position // size]
                assert 0 < block_id < group.num_blocks, "KV would be written to the null block"
                content = (self.generation, self._history(held, tokens[: position + 1]))
                slots[block_id, position % size] = content

    def _read(self, planned: ScheduledSequence) -> None:
        held, tokens = self._tokens(planned)
        assert held.tables is not None
        contents = [self._history(held, tokens[: p + 1]) for p in range(len(tokens))]
        for table, group, slots in zip(held.tables, self.groups, self.slots, strict=True):
            size, window = group.spec.block_size, getattr(group.spec, "window", len(tokens))
            for position in range(max(0, planned.num_computed_tokens - window + 1), len(tokens)):
                generation, history = slots[table[position // size], position % size]
                assert history == contents[position], f"wrong KV at position {position} of {planned}"
                assert generation >= held.generation, "KV of before a reset was reused"

    def _result(self, planned: ScheduledSequence) -> SequenceResult:
        held, tokens = self._tokens(planned)
        if self.rng.random() < self.error_rate:
            return SequenceResult(planned.sequence_id, error="scripted failure")
        prompt_logprobs: list[tuple[int, TokenLogprobs]] = []
        if held.request.sampling_params.prompt_logprobs is not None:
            last = min(len(tokens) + 1, len(held.request.prompt_token_ids))
            prompt = list(held.request.prompt_token_ids)
            prompt_logprobs = [(p, logprob_of(prompt[: p + 1])) for p in range(planned.num_computed_tokens + 1, last)]
        if len(tokens) < len(held.tokens):
            return SequenceResult(planned.sequence_id, prompt_logprobs=tuple(prompt_logprobs))
        accepted: list[int] = []
        for draft in (*planned.draft_token_ids, -1):
            accepted.append(next_token(held.request, held.child_index, held.tokens + accepted))
            if accepted[-1] != draft:
                break
        self.num_accepted += len(accepted) - 1
        history = held.tokens + accepted
        logprobs = [logprob_of(history[: len(held.tokens) + i + 1]) for i in range(len(accepted))]
        return SequenceResult(
            planned.sequence_id,
            tuple(accepted),
            tuple(logprobs),
            tuple(prompt_logprobs),
            self._propose(held, history),
        )

    def _propose(self, held: Held, history: list[int]) -> tuple[int, ...]:
        """Right drafts, then perhaps wrong ones; as many as it likes, past every limit too."""
        drafts: list[int] = []
        for _ in range(self.rng.randint(0, self.max_drafts)):
            right = next_token(held.request, held.child_index, history + drafts)
            drafts.append(right if self.rng.random() < 0.7 else self.rng.randrange(VOCABULARY))
        return tuple(drafts)

    def accept(self, sequence_id: int, token_ids: tuple[int, ...]) -> None:
        """These tokens were committed."""
        self.held[sequence_id].tokens += token_ids
