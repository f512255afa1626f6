"""Runs a model: one plan in, one result out, with everything between hidden states and tokens.

Owns: the order of a step on the device side. Must never know: queues, block accounting, text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from octavo.extensions import Offer
from octavo.loading.loader import load_model
from octavo.nn import LocalCommunicator, attention_layers
from octavo.request import TokenLogprobs
from octavo.runner.attention import bind_kv_cache
from octavo.runner.devices import choose_device
from octavo.runner.drafting import Drafting, draw_drafts
from octavo.runner.input_batch import InputBatch, RunnerSequence, StepInputs
from octavo.runner.logit_rows import LogitRows, blank_bad_rows, choose_logit_rows, cut_at_bad_rows, field_at_fault
from octavo.runner.processing import ProcessorChain
from octavo.runner.profiling import dummy_attention_inputs, least_seconds
from octavo.sampling.logprobs import gather_logprobs
from octavo.spec import (
    AttentionBackend,
    DraftRow,
    ExecutorContext,
    ForwardBatch,
    KVCacheLayout,
    KVCacheSpec,
    LogitRow,
    LogitsProcessorEntry,
    ModelContext,
    ProcessorContext,
    TargetView,
    Verifier,
)
from octavo.step import Attachment, AttachRequest, SchedulerOutput, SequenceResult, StepResult

_PROMPT_LOGPROB_ROWS = 128
"""Logits of at most so many prompt positions are held at a time."""
_UNMEASURED_PROFILE_TOKENS = 16
"""Where the device cannot tell its peak memory, a short pass proves that the model runs."""
_COST_SECONDS = 1.5
"""So long may the measurement of step costs take."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step between `launch` and `collect`."""

    inputs: StepInputs
    hidden: torch.Tensor  # [num_tokens, hidden_size]
    rows: LogitRows
    processor_rows: list[tuple[str, list[LogitRow]]]
    errors: dict[int, str] = field(default_factory=dict)
    """Why a sequence failed in this step, by sequence id."""
    complete: dict[int, int] = field(default_factory=dict)
    """With how many tokens of this step a sequence's output is complete, by sequence id."""


class ModelRunner:
    """One model on one device. Not thread-safe; a step is `launch` and then `collect`."""

    def __init__(self, context: ExecutorContext) -> None:
        config, extensions = context.config, context.extensions
        self._config, self._extensions, self._tokenizer = config, extensions, context.tokenizer
        self._max_model_len = context.max_model_len
        self._choice = choose_device(config.model, extensions.platforms)
        self._choice.platform.configure(config.parallel.num_threads)
        self._notes = dict(self._choice.reasons)
        self._model = load_model(
            context.source,
            extensions,
            ModelContext(
                dtype=self._choice.dtype,
                device=self._choice.device,
                block_size=config.cache.block_size,
                max_model_len=context.max_model_len,
                communicator=LocalCommunicator(),
            ),
            config.model.architecture,
        )
        self._vocab_size = self._model.vocab_size
        self._num_drafts = config.speculation.num_draft_tokens
        self._verifier: Verifier = extensions.first(extensions.verifier_makers, "verifier", config.sampling.verifier)
        drafter_offer = extensions.drafters.find(config.speculation.drafter)
        self._drafter = drafter_offer.make(
            TargetView(
                model=self._model,
                config=context.source.config,
                tokenizer=self._tokenizer,
                vocab_size=self._vocab_size,
                max_model_len=context.max_model_len,
                num_draft_tokens=self._num_drafts,
                options=extensions.options_of(drafter_offer),
                draw=draw_drafts if self._verifier.wants_draft_probs else None,
            )
        )
        self._models = [m for m in (self._model, self._drafter.model) if m is not None]
        """Everything with attention layers: the target, and the drafter's own layers."""
        self._processors = ProcessorChain(extensions, config.sampling.logits_processors, self._processor_context)
        self._drafting = Drafting(config.speculation.drafter, self._drafter, self._processors, self._vocab_size)
        self._backends: list[AttentionBackend] = []
        self._batch: InputBatch
        self._step: Step | None = None
        self._step_id = 0

    @property
    def num_lookahead_tokens(self) -> int:
        return self._drafter.num_lookahead_tokens

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return {name: spec for model in self._models for name, spec in model.kv_cache_specs().items()}

    def describe(self) -> Mapping[str, str]:
        return self._notes

    def profile(self) -> int:
        """Run the largest step the budget allows; bytes of memory that are then free for the KV cache."""
        platform = self._choice.platform
        names = tuple((name,) for name in self.kv_cache_specs())
        self.initialize_kv_cache(KVCacheLayout(names, num_blocks=(1,) * len(names), table_widths=(1,) * len(names)))
        platform.reset_peak_memory()
        start, memory = platform.peak_memory(), platform.memory()
        budget = self._config.scheduler.max_num_batched_tokens
        self._dummy_step(budget if start is not None else min(budget, _UNMEASURED_PROFILE_TOKENS))
        platform.synchronize()
        free = memory.available - ((platform.peak_memory() or 0) - (start or 0))
        self._notes["memory"] = f"{free / 2**30:.1f} GiB of {memory.total / 2**30:.1f} GiB free after loading"
        return max(0, free)

    def measure_step_costs(self, sizes: Sequence[int]) -> Sequence[float]:
        def run(num_tokens: int) -> None:
            self._dummy_step(num_tokens)
            self._choice.platform.synchronize()

        return least_seconds(run, sizes, _COST_SECONDS)

    @torch.inference_mode()
    def _dummy_step(self, num_tokens: int) -> None:
        num_tokens = min(num_tokens, self._max_model_len)
        inputs = dummy_attention_inputs(num_tokens, self._config.cache.block_size, self._choice.device)
        metadata = [backend.build_metadata(inputs) for backend in self._backends]
        token_ids = torch.zeros_like(inputs.positions)
        hidden = self._model.forward(ForwardBatch(token_ids, inputs.positions, metadata))
        self._model.logits(hidden[: self._config.scheduler.max_num_seqs * (1 + self._num_drafts)])

    def initialize_kv_cache(self, layout: KVCacheLayout) -> None:
        """Choose attention backends, allocate the cache, and start from an empty batch."""
        specs = self.kv_cache_specs()
        layers = {name: layer for model in self._models for name, layer in attention_layers(model).items()}
        self._backends, lines = bind_kv_cache(
            layers, specs, layout, self._config.attention.backend, self._extensions, self._choice
        )
        self._notes["attention"] = ", ".join(dict.fromkeys(lines))
        self._batch = InputBatch(
            block_sizes=[specs[names[0]].block_size for names in layout.groups],
            table_widths=layout.table_widths,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            max_num_tokens=self._config.scheduler.max_num_batched_tokens,
            device=self._choice.device,
        )

    def attach(self, requests: Sequence[AttachRequest]) -> None:
        for r in requests:
            sequence = RunnerSequence(r.sequence_id, r.request, r.child_index)
            self._batch.add(sequence)
            self._processors.attach(sequence)

    def poll(self, timeout: float = 0.0) -> Sequence[Attachment]:
        return self._processors.poll(timeout)

    def detach(self, sequence_ids: Sequence[int]) -> None:
        for sequence_id in sequence_ids:
            if self._batch.remove(sequence_id) is not None:
                self._processors.release(sequence_id)
                self._drafting.release(sequence_id)

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> None:
        """Apply the plan to the batch and start the forward pass; processors prepare while the device computes."""
        self.detach(plan.released)
        for sequence_id in plan.preempted:
            self._batch.drop_row(sequence_id)
            self._drafting.drop(sequence_id)
        for start in plan.started:
            self._batch.start(start)
        self._step_id, self._step = plan.step_id, None
        if not plan.scheduled:
            return
        inputs = self._batch.prepare(plan.scheduled)
        rows = choose_logit_rows(inputs)
        metadata = [b.build_metadata(i) for b, i in zip(self._backends, inputs.attention_inputs, strict=True)]
        hidden = self._model.forward(ForwardBatch(inputs.input_ids, inputs.positions, metadata))
        step = Step(inputs, hidden, rows, self._processors.rows_for(rows.sequences, rows.drafts, rows.start.tolist()))
        self._processors.prepare(step.processor_rows, step.errors)
        self._step = step

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """Finish the launched step: logits, tokens, state of processors, drafts for the next step."""
        step, self._step = self._step, None
        if step is None:
            return StepResult(self._step_id, ())
        prompt_logprobs = self._prompt_logprobs(step)
        tokens, logprobs = self._sample(step) if step.rows.sequences else ([], [])
        for sequence, token_ids in zip(step.rows.sequences, tokens, strict=True):
            if sequence.sequence_id not in step.errors:
                sequence.append(token_ids)
                complete = self._processors.accept(sequence, token_ids, step.errors)
                if complete is not None:
                    step.complete[sequence.sequence_id] = complete
        drafts = self._draft(step, tokens)
        results = [
            SequenceResult(s.sequence_id, prompt_logprobs=prompt_logprobs.get(i, ()))
            for i, s in enumerate(step.inputs.sequences)
        ]
        for n, i in enumerate(step.rows.scheduled):
            sequence_id = results[i].sequence_id
            if sequence_id in step.errors:
                error = step.errors[sequence_id]
                field = field_at_fault(step.rows.sequences[n].request.sampling_params, error)
                results[i] = SequenceResult(sequence_id, error=error, error_field=field)
            else:
                complete = step.complete.get(sequence_id)
                results[i] = SequenceResult(
                    sequence_id,
                    tuple(tokens[n][:complete]),
                    logprobs[n][:complete],
                    results[i].prompt_logprobs,
                    drafts.get(n, ()),
                    complete=complete is not None,
                )
        return StepResult(self._step_id, tuple(results))

    def _sample(self, step: Step) -> tuple[Sequence[Sequence[int]], list[tuple[TokenLogprobs, ...]]]:
        """Tokens of each sequence of the logit rows, and their log probabilities where they were asked for."""
        rows = step.rows
        logits = self._model.logits(step.hidden[torch.from_numpy(rows.flat_indices).to(step.hidden.device)]).float()
        asked = {n: k for n, s in enumerate(rows.sequences) if (k := s.request.sampling_params.logprobs) is not None}
        raw = {n: logits[rows.span(n)].clone() for n in asked}
        if self._tokenizer is not None and self._tokenizer.vocab_size < logits.shape[-1]:
            logits[:, self._tokenizer.vocab_size :] = -torch.inf  # rows of a padded vocabulary mean nothing
        self._processors.apply(step.processor_rows, logits, step.errors)
        bad = blank_bad_rows(logits)
        tokens = self._verifier.verify(logits, rows.verify_rows(self._drafting.probs))
        if bad:
            tokens = cut_at_bad_rows(rows, tokens, bad, step.errors)
        logprobs: list[tuple[TokenLogprobs, ...]] = [()] * len(tokens)
        for n, num_top in asked.items():
            chosen = tokens[n]
            if chosen:
                logprobs[n] = tuple(gather_logprobs(raw[n][: len(chosen)], chosen, [num_top] * len(chosen)))
        return tokens, logprobs

    def _prompt_logprobs(self, step: Step) -> dict[int, tuple[tuple[int, TokenLogprobs], ...]]:
        """(position, log probabilities) of the prompt tokens that this step's rows predict, by scheduled index."""
        found = {}
        for i, (sequence, plan) in enumerate(zip(step.inputs.sequences, step.inputs.scheduled, strict=True)):
            num_top = sequence.request.sampling_params.prompt_logprobs
            if num_top is None:
                continue
            prompt = sequence.prompt_token_ids
            first = plan.num_computed_tokens  # the row at position p predicts the token at p + 1
            end = min(first + plan.num_scheduled_tokens, len(prompt) - 1)
            offset = int(step.inputs.query_start[i]) - first
            rows: list[tuple[int, TokenLogprobs]] = []
            for p in range(first, end, _PROMPT_LOGPROB_ROWS):
                q = min(p + _PROMPT_LOGPROB_ROWS, end)
                logits = self._model.logits(step.hidden[offset + p : offset + q])
                logprobs = gather_logprobs(logits, prompt[p + 1 : q + 1].tolist(), [num_top] * (q - p))
                rows += zip(range(p + 1, q + 1), logprobs, strict=True)
            found[i] = tuple(rows)
        return found

    def _draft(self, step: Step, tokens: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
        """Drafts for the next step, by index in the logit rows, cut to the room that each sequence has left."""
        indices, rows = [], []
        for n, (sequence, token_ids) in enumerate(zip(step.rows.sequences, tokens, strict=True)):
            request = sequence.request
            longest = min(len(request.prompt_token_ids) + request.max_tokens, self._max_model_len)
            room = min(self._num_drafts, longest - sequence.num_tokens - 1)
            if room <= 0 or sequence.sequence_id in step.errors or sequence.sequence_id in step.complete:
                continue
            hidden = None
            if self._drafter.wants_hidden:
                start = int(step.rows.flat_indices[step.rows.start[n]])
                hidden = step.hidden[start : start + len(token_ids)]
            indices.append(n)
            rows.append(DraftRow(sequence, len(token_ids) - 1, room, hidden))
        return dict(zip(indices, self._drafting.propose(rows, step.errors), strict=True))

    def _processor_context(self, offer: Offer[LogitsProcessorEntry]) -> ProcessorContext:
        return ProcessorContext(
            options=self._extensions.options_of(offer),
            tokenizer=self._tokenizer,
            vocab_size=self._vocab_size,
            device=self._choice.device,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            max_num_draft_tokens=self._num_drafts,
            structured_outputs=self._config.structured_outputs,
        )
