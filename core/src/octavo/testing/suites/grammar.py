"""Laws of grammar backends: masks that agree with `accept`, exact rollback, ends where they may be, apart from others.

A grammar is a logits processor too, so the laws of those hold as well.
Owns: `GrammarSuite`. Must never know: any grammar library.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequestError
from octavo.grammar import GrammarProcessor
from octavo.request import FinishReason
from octavo.spec import CompiledGrammar, GrammarBackend, MaskRows, Tokenizer
from octavo.testing.suites.circumstances import MAX_MODEL_LEN, WITH_DRAFTS, check_in_circumstance
from octavo.testing.suites.grammar_samples import BROKEN, CONSTRAINTS, Constraint
from octavo.testing.suites.grammar_walk import Walk
from octavo.testing.suites.logits_processor import LogitsProcessorSuite
from octavo.testing.table_model import EOS_TOKEN_ID

STOPS: Mapping[str, frozenset[int]] = {
    "no-stop": frozenset(),
    "one-stop": frozenset({EOS_TOKEN_ID}),
    "two-stops": frozenset({0, EOS_TOKEN_ID}),
}

ILL_FORMED = (b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\x80", b"\xff")


class GrammarSuite(LogitsProcessorSuite):
    """See `octavo.testing.suites`."""

    constraints: Sequence[Constraint] = CONSTRAINTS
    broken: Sequence[Mapping[str, Any]] = BROKEN
    forces_text: bool = True
    """Whether it ever says that text is forced."""
    strict_utf8: bool = True
    """Whether it refuses bytes that are no UTF-8, which only a model out of its mind says."""

    def llm(self, **keywords: Any) -> Any:
        return super().llm(**({"vocabulary": "bytes"} | keywords))

    def backend(self) -> GrammarBackend:
        """A new grammar backend, as the entry's processor has it."""
        processor = self.processor()
        assert isinstance(processor, GrammarProcessor), "the factory makes something else; override `backend`"
        return processor._backend

    @cached_property
    def own_constraints(self) -> list[Constraint]:
        """Those of a kind that the entry declares."""
        kinds = self.offer.entry.grammar_kinds
        assert kinds, "the entry has no grammar_kinds"
        return [c for c in self.constraints if c.params.kind in kinds]

    def fields(self) -> Sequence[Mapping[str, Any]]:
        backend = self.offer.entry.name
        return [{"structured_outputs": {**c.fields, "backend": backend}} for c in self.own_constraints]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "constraint" in metafunc.fixturenames:
            metafunc.parametrize("constraint", self.own_constraints, ids=str)

    def walk(
        self,
        constraint: Constraint,
        stops: frozenset[int] = STOPS["one-stop"],
        backend: GrammarBackend | None = None,
        compiled: CompiledGrammar | None = None,
    ) -> Walk:
        """A matcher at its start, of the test's own backend or the given one."""
        backend = backend or self.own_backend
        compiled = compiled or backend.compile(constraint.params)
        return Walk(constraint, stops, backend, compiled, self.tokenizer, self.vocab_size)

    def walks(self, constraint: Constraint) -> Iterator[Walk]:
        """One without stop tokens, one with one, one with several."""
        compiled = self.own_backend.compile(constraint.params)
        for stops in STOPS.values():
            yield self.walk(constraint, stops, compiled=compiled)

    @cached_property
    def own_backend(self) -> GrammarBackend:
        return self.backend()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    # Laws

    def test_the_mask_allows_what_accept_takes(self, constraint: Constraint) -> None:
        """Token by token over the whole vocabulary, padded and special ids included, all along the valid texts."""
        for walk in self.walks(constraint):
            special = list(walk.special_ids - walk.stops)
            for token_ids in walk.spellings(constraint.valid, count=2):
                for token_id in [*token_ids, None]:
                    mask = walk.mask()
                    assert mask.tolist() == walk.accepted_one_by_one(), f"after {walk.text()!r}"
                    assert not mask[special].any(), "a special token is no text"
                    assert not mask[walk.tokenizer.vocab_size :].any(), "a padded id is no text"
                    if token_id is not None:
                        assert walk.accept(token_id), f"{walk.tokenizer.token(token_id)!r} after {walk.text()!r}"
                walk.restart()

    def test_it_ends_where_the_output_may_end(self, constraint: Constraint) -> None:
        for walk in self.walks(constraint):
            for token_ids in walk.spellings(constraint.valid, count=3):
                self._check_end(walk)
                for token_id in token_ids:
                    assert walk.accept(token_id), f"{walk.tokenizer.token(token_id)!r} is refused"
                    self._check_end(walk)
                for stop in walk.stops:
                    assert walk.accept(stop), "it may not end after a valid text"
                    assert walk.matcher.is_finished()
                    assert not walk.matcher.accept(stop), "it goes on after its end"
                    walk.rollback(1)
                walk.restart()

    @staticmethod
    def _check_end(walk: Walk) -> None:
        """Stop tokens are allowed where the text is whole; finished is what nothing else can follow."""
        mask, text = walk.mask(), walk.text()
        ends = {bool(mask[stop]) for stop in walk.stops}
        assert len(ends) <= 1, f"stop tokens are not alike after {text!r}"
        mask[list(walk.stops)] = False
        assert walk.matcher.is_finished() == (not mask.any()), f"after {text!r}"
        if walk.constraint.check is not None and ends:
            assert ends == {walk.constraint.check(text)}, f"may it end after {text!r}?"

    def test_valid_texts_can_be_spelt_in_every_way_and_invalid_ones_in_none(self, constraint: Constraint) -> None:
        walk = self.walk(constraint)
        for texts, expected in ((constraint.valid, True), (constraint.invalid, False)):
            for token_ids in walk.spellings(texts, count=8):
                spelt = all(walk.accept(token_id) for token_id in (*token_ids, EOS_TOKEN_ID))
                assert spelt == expected, (
                    f"{[walk.tokenizer.token(t) for t in token_ids]} stopped after {walk.text()!r}"
                )
                walk.restart()

    def test_no_broken_character_can_be_spelt(self, constraint: Constraint) -> None:
        """Bytes that are no UTF-8: halves of pairs, needlessly long forms, numbers beyond Unicode, lone bytes."""
        if not self.strict_utf8:
            pytest.skip("it declares that it lets ill-formed UTF-8 pass")
        walk = self.walk(constraint)
        by_bytes = {walk.tokenizer.token_bytes(t): t for t in range(walk.tokenizer.vocab_size)}
        for token_ids in walk.spellings(constraint.valid, count=1):
            for place in range(len(token_ids)):
                assert all(walk.accept(token_id) for token_id in token_ids[:place])
                before = walk.state()
                for broken in ILL_FORMED:
                    accepted = [walk.accept(by_bytes[bytes([byte])]) for byte in broken]
                    assert not all(accepted), f"{broken!r} after {walk.text()!r}"
                    walk.rollback(sum(accepted))
                assert walk.state() == before
                walk.restart()

    def test_rollback_is_exact(self, constraint: Constraint) -> None:
        """Random walks there and back, over the end too: every state is what it was the first time."""
        rng = random.Random(str(constraint))
        for walk in self.walks(constraint):
            for _ in range(3):
                seen = [walk.state()]
                for _ in range(25):
                    if rng.random() < 0.6:
                        token_id = walk.likely_token(rng)
                        if token_id is None or not walk.accept(token_id):
                            continue
                        del seen[len(walk.tokens) :]
                        seen.append(walk.state())
                        forbidden = walk.forbidden_token(rng)
                        assert not walk.matcher.accept(forbidden), "it took what its mask forbids"
                    else:
                        walk.rollback(rng.randint(0, len(walk.tokens)))
                    assert walk.state() == seen[len(walk.tokens)], f"after a rollback to {walk.text()!r}"
                walk.restart()

    def test_forced_text_is_forced(self, constraint: Constraint) -> None:
        walk = self.walk(constraint)
        for token_ids in walk.spellings(constraint.valid, count=2):
            for token_id in token_ids:
                forced, allowed = walk.matcher.forced_text().encode(), np.flatnonzero(walk.mask())
                for other in allowed.tolist() if forced else ():
                    spelt = walk.tokenizer.token_bytes(other)
                    fits = spelt and (forced.startswith(spelt) or spelt.startswith(forced))
                    assert fits, f"{spelt!r} may follow {walk.text()!r} as well as {forced!r}"
                walk.accept(token_id)
            walk.restart()

    def test_some_text_is_forced_somewhere(self) -> None:
        if not self.forces_text:
            pytest.skip("it declares that it never forces text")
        walks = [self.walk(constraint) for constraint in self.own_constraints]
        assert any(walk.matcher.forced_text() or self._forces_on_its_way(walk) for walk in walks)

    @staticmethod
    def _forces_on_its_way(walk: Walk) -> bool:
        token_ids = next(walk.spellings(walk.constraint.valid, count=1))
        return any(walk.accept(token_id) and walk.matcher.forced_text() for token_id in token_ids)

    def test_rows_behind_drafts_are_the_masks_of_the_history(self, constraint: Constraint) -> None:
        """Also up to a draft that the grammar forbids, which does no harm; and nothing has moved afterwards."""
        walk = self.walk(constraint)
        rng = random.Random(1)
        for token_ids in walk.spellings(constraint.valid, count=2):
            done = rng.randint(0, len(token_ids) // 2)
            assert all(walk.accept(token_id) for token_id in token_ids[:done])
            before = walk.state()
            drafts = token_ids[done : done + 5]  # never a stop token: the engine takes none as a draft
            expected = [walk.mask()]
            for draft in drafts:
                assert walk.accept(draft)
                expected.append(walk.mask())
            walk.rollback(len(drafts))
            found = walk.masks(drafts)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
            for place in range(len(drafts)):
                forbidden = int(rng.choice(np.flatnonzero(~expected[place]).tolist()))
                wrong = [*drafts[:place], forbidden, *drafts[place:]]
                rows = walk.masks(wrong)[: place + 1]
                assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=False))
                assert walk.state() == before, "filling a bitmask has moved the matcher"
            walk.restart()

    def test_sequences_in_one_bitmask_are_each_as_alone(self) -> None:
        walks = [walk for constraint in self.own_constraints for walk in self.walks(constraint)]
        work: list[MaskRows] = []
        alone: list[np.ndarray] = []
        for i, walk in enumerate(walks):
            token_ids = next(walk.spellings(walk.constraint.valid, count=1))
            assert all(walk.accept(token_id) for token_id in token_ids[: i % 3])
            drafts = token_ids[i % 3 :][: i % 4]
            work.append(MaskRows(walk.matcher, len(alone), drafts))
            alone += list(walk.masks(drafts))
        together = walks[0].fill([*work[::-1]], len(alone))
        assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))

    def test_matchers_of_one_grammar_go_their_own_ways(self, constraint: Constraint) -> None:
        backend = self.backend()
        compiled = backend.compile(constraint.params)
        assert compiled.num_bytes > 0
        one, other = (self.walk(constraint, backend=backend, compiled=compiled) for _ in range(2))
        at_start = other.state()
        for token_ids in one.spellings(constraint.valid, count=1):
            assert all(one.accept(token_id) for token_id in token_ids)
            assert other.state() == at_start
            one.restart()

    def test_what_cannot_be_compiled_ends_alone(self) -> None:
        backend, kinds = self.backend(), self.offer.entry.grammar_kinds
        good = self.own_constraints[0]
        expected = self.walk(good, backend=backend).state()
        for fields in self.broken:
            constraint = Constraint(fields, (), ())
            if constraint.params.kind in kinds:
                with pytest.raises(InvalidRequestError) as caught:
                    backend.compile(constraint.params)
                assert caught.value.field == "structured_outputs"
                assert self.walk(good, backend=backend).state() == expected

    def test_grammars_compile_in_several_threads_at_once(self) -> None:
        backend, constraints = self.backend(), self.own_constraints * 2
        expected = [self.walk(c).state() for c in constraints[: len(constraints) // 2]] * 2
        with ThreadPoolExecutor(4) as pool:
            compiled = list(pool.map(lambda c: backend.compile(c.params), constraints))
        for constraint, grammar, state in zip(constraints, compiled, expected, strict=True):
            assert self.walk(constraint, backend=backend, compiled=grammar).state() == state

    @pytest.mark.parametrize(("circumstance", "drafter"), WITH_DRAFTS)
    def test_the_tokens_are_the_same_in_every_circumstance(self, circumstance: str, drafter: str) -> None:
        """And outputs satisfy the constraint, or are the beginning of one that does if they were cut."""
        plain = self.llm(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False, jump_forward=False)
        options = ({"temperature": 0.0}, {"temperature": 0.9, "n": 2, "max_tokens": 40})
        fields = [{**o, **f, "ignore_eos": i % 3 == 0} for i, f in enumerate(self.fields()) for o in options]
        stats, outputs = check_in_circumstance(circumstance, plain, self.llm, fields, drafter=drafter)
        assert drafter == "none" or sum(s.num_accepted_tokens for s in stats) > 0
        walks = [walk for c in self.own_constraints for walk in [self.walk(c)] * len(options)]
        completions = [(i, c) for i, output in enumerate(outputs) for c in output.outputs]
        num_jobs = len(outputs) // 2
        assert any(c.finish_reason is FinishReason.STOP for _, c in completions), "no output is whole"
        for i, completion in completions:
            walk = walks[i % num_jobs % len(fields)]
            assert all(walk.accept(token_id) for token_id in completion.token_ids), completion.text
            check = walk.constraint.check if completion.finish_reason is FinishReason.STOP else None
            if check is not None and (self.strict_utf8 or "\ufffd" not in completion.text):
                assert check(completion.text), completion.text
            walk.restart()
