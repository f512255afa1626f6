"""Laws of logits processors: rows apart, drafts as history, state that moves only in `accept`, nothing left behind.

Owns: `LogitsProcessorSuite`. Must never know: what any processor does to a row.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, ClassVar

import pytest
import torch

from octavo.runner.input_batch import RunnerSequence
from octavo.sampling_params import SamplingParams
from octavo.spec import LogitRow, LogitsProcessor
from octavo.testing.suites.circumstances import MAX_MODEL_LEN, OPTIONS, WITH_DRAFTS, check_in_circumstance
from octavo.testing.suites.subject import PluginSuite, footprint, sequence

Work = Sequence[tuple[RunnerSequence, Sequence[int]]]
"""Sequences, each with its drafts."""
NUM_DRAFTS = 3
WAIT = 200.0
"""Seconds for background work."""


class LogitsProcessorSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "logits_processors"

    requests: Sequence[Mapping[str, Any]] = ()

    def fields(self) -> Sequence[Mapping[str, Any]]:
        """`SamplingParams` fields of requests that the processor concerns."""
        return self.requests or ({"extra_args": {self.offer.entry.name: True}},)

    def processor(self) -> LogitsProcessor:
        """A new one, to be asked without an engine."""
        return self.llm().engine.core._executor._processors._processor(self.offer.entry.name)

    def attached(
        self, processor: LogitsProcessor, sequence_id: int, number: int, output: Sequence[int] = ()
    ) -> RunnerSequence:
        """A sequence of request `number` that has said `output`, which the processor was told step by step."""
        fields, rng = self.fields(), random.Random(number)
        prompt = [rng.randrange(2, self.vocab_size) for _ in range(1 + number % 5)]
        view = sequence(sequence_id, prompt, params=SamplingParams(**fields[number % len(fields)]))
        answer = processor.attach(view)
        if isinstance(answer, Future):
            answer.result(WAIT)
        assert answer is not False, "it is not interested in a request that should concern it; set `requests`"
        for token_id in output:
            self.commit(processor, view, [token_id])
        return view

    def commit(self, processor: LogitsProcessor, view: RunnerSequence, token_ids: Sequence[int]) -> None:
        """What happens in a step that yields `token_ids`: all but the last were drafts."""
        self.processed(processor, [(view, token_ids[:-1])])
        view.append(token_ids)
        processor.accept(view, token_ids)

    def rows(self, work: Work, first: int = 0) -> list[LogitRow]:
        """The logit rows of sequences with their drafts, from row `first` on."""
        rows: list[LogitRow] = []
        for view, drafts in work:
            rows += [LogitRow(first + len(rows) + i, view, tuple(drafts[:i])) for i in range(len(drafts) + 1)]
        return rows

    def processed(self, processor: LogitsProcessor, work: Work, seed: int = 0) -> torch.Tensor:
        """Random logits [num_rows, vocab_size], the first row alike for the same seed, after the processor."""
        rows = self.rows(work)
        return self.apply(processor, rows, self.noise(len(rows), seed))

    @staticmethod
    def apply(processor: LogitsProcessor, rows: Sequence[LogitRow], logits: torch.Tensor) -> torch.Tensor:
        """What a step does with the rows."""
        failed = processor.prepare(rows)
        assert not failed, failed
        processor.apply(logits, rows)
        return logits

    def noise(self, num_rows: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(num_rows, self.vocab_size, generator=torch.Generator().manual_seed(seed))

    def likely_tokens(self, processor: LogitsProcessor, view: RunnerSequence, count: int) -> list[int]:
        """Tokens that may follow as far as the processor is concerned, as a model with random logits would say them."""
        tokens: list[int] = []
        while len(tokens) < count:
            row = self.processed(processor, [(view, tokens)], seed=view.num_tokens)[-1]
            if not row.isfinite().any():
                break
            tokens.append(int(row.argmax()))
        return tokens

    def draw(
        self, processor: LogitsProcessor, first_id: int = 1, count: int = 7
    ) -> list[tuple[RunnerSequence, list[int]]]:
        """Sequences of all requests, with outputs of several lengths and with drafts that may follow them."""
        work = []
        for number in range(count):
            view = self.attached(processor, first_id + number, number)
            for token_id in self.likely_tokens(processor, view, number % 7):
                self.commit(processor, view, [token_id])
            work.append((view, self.likely_tokens(processor, view, number % (NUM_DRAFTS + 1))))
        return work

    @cached_property
    def engine(self) -> Any:
        """To look vocabulary and tokenizer up in."""
        return self.llm().engine

    @property
    def vocab_size(self) -> int:
        return self.engine.inputs._vocab_size

    def fresh_rows(self) -> list[list[float]]:
        """What a new processor makes of the rows of `draw`."""
        processor = self.processor()
        return self.processed(processor, self.draw(processor)).tolist()

    # Laws

    def test_a_row_is_what_it_is_alone_and_other_rows_stay_as_they_are(self) -> None:
        processor = self.processor()
        work = self.draw(processor)
        rows = self.rows(work, first=1)  # the rows before and behind are not this processor's
        together = self.noise(len(rows) + 2)
        given = together.clone()
        self.apply(processor, rows, together)
        assert torch.equal(together[0], given[0])
        assert torch.equal(together[-1], given[-1])
        assert not together.isnan().any()
        for view, _ in work:
            own = [row for row in rows if row.sequence is view]
            indices = [row.index for row in own]
            alone = self.noise(len(rows) + 2, seed=1)
            alone[indices] = given[indices]
            expected = alone.clone()
            expected[indices] = together[indices]
            self.apply(processor, own, alone)
            assert torch.equal(alone, expected), "a row depends on others, or others were changed"

    def test_the_order_of_sequences_does_not_matter(self) -> None:
        processor = self.processor()
        work = self.draw(processor)
        rows = [row for view, _ in work[::-1] for row in self.rows(work) if row.sequence is view]
        logits = self.apply(processor, rows, self.noise(len(rows)))
        assert torch.equal(logits, self.processed(processor, work))

    def test_drafts_are_history_to_the_rows_behind_them(self) -> None:
        """A row behind drafts is the row of a sequence that has committed them."""
        processor = self.processor()
        for number, (view, _) in enumerate(self.draw(processor)):
            drafts = self.likely_tokens(processor, view, NUM_DRAFTS)
            found = self.processed(processor, [(view, drafts)], seed=number)
            twin = self.attached(processor, 100 + number, number, view.output_token_ids.tolist())
            for i, row in enumerate(found):
                logits = self.apply(processor, [LogitRow(i, twin, ())], self.noise(len(found), seed=number))
                assert torch.equal(logits[i], row), f"after {i} drafts it does not see what it saw as history"
                if i < len(drafts):
                    self.commit(processor, twin, [drafts[i]])

    def test_only_accept_moves_its_state(self) -> None:
        """Rows may be prepared and processed as often as steps fail or drafts are rejected."""
        processor = self.processor()
        work = self.draw(processor)
        plain = [(view, ()) for view, _ in work]
        expected = self.processed(processor, plain)
        for _ in range(3):
            self.processed(processor, work)
            processor.prepare(self.rows(work))  # a step that failed: no apply
        assert torch.equal(self.processed(processor, plain), expected)

    def test_tokens_accepted_at_once_are_tokens_accepted_one_by_one(self) -> None:
        processor = self.processor()
        for number, (view, _) in enumerate(self.draw(processor)):
            output = view.output_token_ids.tolist()
            twin = self.attached(processor, 100 + number, number)
            if output:
                self.commit(processor, twin, output)
            assert torch.equal(self.processed(processor, [(twin, ())]), self.processed(processor, [(view, ())]))

    def test_two_processors_share_nothing_and_agree(self) -> None:
        one, other = self.processor(), self.processor()
        self.draw(other, count=4)
        work = self.draw(one)
        assert torch.equal(self.processed(other, self.draw(other, first_id=50)), self.processed(one, work))

    def test_released_sequences_leave_nothing(self) -> None:
        processor = self.processor()

        def serve() -> int:
            for view, _ in self.draw(processor, count=20):
                processor.release(view.sequence_id)
            processor.release(self.attached(processor, 1, 1).sequence_id)  # withdrawn before its first step
            processor.prepare([])
            return footprint(processor)

        sizes = [serve() for _ in range(4)]
        assert max(sizes[1:]) - sizes[0] <= 2048, f"bytes held after each round: {sizes}"

    def test_an_id_used_anew_starts_from_nothing(self) -> None:
        processor = self.processor()
        first = [self.processed(processor, [item]) for item in self.draw(processor)]
        for sequence_id in range(1, len(first) + 1):
            processor.release(sequence_id)
        again = [self.processed(processor, [item]) for item in self.draw(processor)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

    def test_another_process_makes_the_same_of_it(self) -> None:
        assert self.in_fresh_process("fresh_rows") == self.fresh_rows()

    @pytest.mark.parametrize(("circumstance", "drafter"), WITH_DRAFTS)
    def test_the_tokens_are_the_same_in_every_circumstance(self, circumstance: str, drafter: str) -> None:
        """Chunks, preemption, prefix hits, aborts, drafts; with every sampling option beside it."""
        plain = self.llm(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
        own = self.fields()
        fields = [_with(option, own[i % len(own)]) for i, option in enumerate(OPTIONS)]
        fields += [{"temperature": 0.0, **f} for f in own]
        stats, _ = check_in_circumstance(circumstance, plain, self.llm, fields, drafter=drafter)
        assert drafter == "none" or sum(s.num_accepted_tokens for s in stats) > 0


def _with(option: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sampling option besides what the processor is asked for; not one that would leave it no token to choose."""
    return {**{k: v for k, v in option.items() if k != "allowed_token_ids"}, **own}
