"""Drafts in a whole engine: what is verified, what observers see, and that nothing of it shows in the tokens."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.hookspecs import hookimpl
from octavo.sampling.sampler import truncate
from octavo.scheduler import AdaptiveDrafts, StepCosts
from octavo.spec import Draft, DraftRow, LogitsProcessorEntry, Observer, TargetView
from octavo.step import StepStats
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID, VOCAB_SIZE, table_next_logits


class FixedCosts(StepCosts):
    """A table that real steps do not correct, so that no clock has a say."""

    def correct(self, num_tokens: int, seconds: float) -> None: ...


def fix_costs(llm: LLM, seconds: dict[int, float]) -> None:
    llm.engine.core._scheduler._draft_sizing = AdaptiveDrafts(FixedCosts(list(seconds), list(seconds.values())))


STAIRS = {1: 0.10, 2: 0.15, 16: 0.16, 32: 0.25, 64: 0.4}


class Watcher(Observer):
    """A plugin and the observer that it offers: keeps all stats."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []

    @hookimpl
    def octavo_make_observers(self, config: Any) -> list[Watcher]:
        return [self]

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)


def follow(answer: Sequence[int], right: Callable[[int], bool]) -> ScriptedDrafter:
    """Drafts from `answer`, with a wrong token wherever `right(position in the output)` says so."""

    def propose(sequence: Any, most: int) -> list[int]:
        start = len(sequence.output_token_ids)
        drafts = list(answer[start : start + most])
        return [d if right(start + i) else (d + 1) % VOCAB_SIZE for i, d in enumerate(drafts)]

    return ScriptedDrafter(propose)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "right", [lambda p: True, lambda p: False, lambda p: p % 5 > 0], ids=["right", "wrong", "mixed"]
)
def test_tokens_are_those_without_drafts_whatever_is_verified(make_llm, right, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=60, ignore_eos=True)
    answer = make_llm().generate([[5, 6]], params)[0].outputs[0].token_ids
    for adaptive in (True, False):
        llm = make_llm(plugins=[follow(answer, right)], drafter="scripted", adaptive=adaptive)
        if adaptive:
            fix_costs(llm, STAIRS)
        for output in llm.generate([[5, 6]] * 3, params):
            assert output.outputs[0].token_ids == answer


def test_a_wrong_drafter_is_switched_off_and_on_again_when_it_becomes_right(make_llm, greedy) -> None:
    answer, watcher = greedy([5, 6], 300), Watcher()
    drafter = follow(answer, lambda position: position >= 150)
    llm = make_llm(plugins=[drafter, watcher], drafter="scripted", num_draft_tokens=8, adaptive=True)
    fix_costs(llm, STAIRS)
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    assert list(llm.generate([[5, 6]], params)[0].outputs[0].token_ids) == answer
    lengths = list(itertools.accumulate(s.num_generated_tokens for s in watcher.steps))
    before = [s.num_draft_tokens for s, end in zip(watcher.steps, lengths, strict=True) if end < 150]
    after = [s.num_draft_tokens for s, end in zip(watcher.steps, lengths, strict=True) if 170 < end < 290]
    assert sum(n > 0 for n in before) < 8
    assert before[-50:] == [0] * 50
    assert set(after) == {8}
    assert all(s.num_proposed_tokens == 8 for s in watcher.steps[:100]), "proposals go on while none is verified"


def test_costs_are_measured_only_for_a_drafter_whose_drafts_can_be_rejected(make_llm, monkeypatch) -> None:
    from octavo.runner.model_runner import ModelRunner

    asked: list[Sequence[int]] = []
    monkeypatch.setattr(ModelRunner, "measure_step_costs", lambda self, sizes: asked.append(sizes) or [1.0, 2.0])

    def build(**config: Any) -> None:
        make_llm(**({"plugins": [ScriptedDrafter(lambda s, n: [])], "drafter": "scripted", "adaptive": True} | config))

    build(drafter="none")
    build(adaptive=False)
    build(num_draft_tokens=0)
    assert not asked
    build(max_num_seqs=4, num_draft_tokens=2)
    assert asked == [[1, 2, 4, 8, 12]]


def test_step_costs_are_measured_by_steps_that_leave_no_trace(make_llm, greedy) -> None:
    llm = make_llm(plugins=[ScriptedDrafter(lambda s, n: [])], drafter="scripted")
    seconds = llm.engine.core._executor.measure_step_costs([1, 2, 4, 8])
    assert len(seconds) == 4
    assert all(s > 0 for s in seconds)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert list(llm.generate([[5, 6]], params)[0].outputs[0].token_ids) == greedy([5, 6], 8)


def test_observers_see_acceptance_by_position(make_llm, greedy) -> None:
    answer, watcher = greedy([5, 6], 40), Watcher()
    drafter = follow(answer, lambda position: position % 4 != 0)
    llm = make_llm(plugins=[drafter, watcher], drafter="scripted", num_draft_tokens=3)
    llm.generate([[5, 6]] * 2, SamplingParams(temperature=0, max_tokens=33, ignore_eos=True))
    position, expected = 1, []  # the first token comes with the prompt
    while position < 33:
        verified = min(3, 33 - position - 1)
        accepted = next((i for i in range(verified) if (position + i) % 4 == 0), verified)
        expected.append(((2,) * verified, (2,) * accepted))
        position += accepted + 1
    steps = watcher.steps[1:]
    assert [(s.verified_by_position, s.accepted_by_position) for s in steps] == expected
    for s in watcher.steps:
        assert s.num_draft_tokens == sum(s.verified_by_position)
        assert s.num_accepted_tokens == sum(s.accepted_by_position)
        assert s.num_sampled_sequences == 2


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_no_draft_reaches_the_last_token(make_llm, greedy, max_tokens: int) -> None:
    watcher, room = Watcher(), 60
    drafter = ScriptedDrafter(lambda sequence, most: [3] * 99)
    llm = make_llm(plugins=[drafter, watcher], drafter="scripted", max_model_len=64, num_draft_tokens=9)
    for prompt, length in (([5, 6], max_tokens), ([5] * room, min(max_tokens, 64 - room))):
        watcher.steps.clear()
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        assert list(llm.generate([prompt], params)[0].outputs[0].token_ids) == greedy(prompt, length)
        left = length
        for s in watcher.steps:
            assert s.num_draft_tokens < left
            left -= s.num_generated_tokens


class DrawingDrafter(ScriptedDrafter):
    """Draws from a distribution of its own, all of them in one proposal."""

    def _start(self, target: TargetView) -> DrawingDrafter:
        assert target.draw is not None
        self.draw = target.draw
        return self

    def propose(self, rows: Sequence[DraftRow]) -> list[Any]:
        proposals: list[Any] = []
        for row in rows:
            drafts: list[int] = []
            probs: list[torch.Tensor] = []
            for i in range(row.max_drafts):
                probs.append(drafting_distribution(*row.sequence.token_ids.tolist(), *drafts))
                drafts.append(int(self.draw([row], i, probs[-1])))
            proposals.append(Draft(drafts, torch.cat(probs)) if drafts else ())
        return proposals


@cache
def drafting_distribution(*tokens: int) -> torch.Tensor:
    """[1, vocab_size]: near the target's, but it often thinks that this is the end."""
    best = ((2 * table_next_logits(tokens) + table_next_logits([*tokens, 9])) / 3).topk(6)
    probs = torch.zeros(1, VOCAB_SIZE).scatter_(1, best.indices.unsqueeze(0), best.values.softmax(-1).unsqueeze(0))
    probs[0, EOS_TOKEN_ID] += 0.3
    return probs / probs.sum()


FORBIDDEN = 40


class Cutter(ScriptedProcessor):
    """Forbids a token, and cuts drafts before it."""

    def __init__(self) -> None:
        def change(logits: torch.Tensor, tokens: list[int]) -> None:
            logits[FORBIDDEN:] = -torch.inf

        super().__init__(change, always=True)

    @hookimpl
    def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
        factory = lambda context: self  # noqa: E731
        return [LogitsProcessorEntry(name="scripted", factory=factory, always=True, refines_drafts=True)]

    def refine_drafts(self, sequence: Any, draft_token_ids: Sequence[int], max_drafts: int) -> Sequence[int]:
        return list(itertools.takewhile(lambda d: d < FORBIDDEN, draft_token_ids))


@pytest.mark.parametrize(("adaptive", "refining"), [(True, False), (False, True)])
def test_drawn_drafts_under_the_rejection_rule_keep_the_distribution(make_llm, adaptive: bool, refining: bool) -> None:
    """Three tokens, ends included: a rule that loses or favours what was drafted at some place would show here."""
    num, drafter, watcher = 3000, DrawingDrafter(lambda s, n: []), Watcher()
    plugins: list[Any] = [drafter, watcher, *([Cutter()] if refining else [])]
    llm = make_llm(plugins=plugins, drafter="scripted", verifier="rejection", adaptive=adaptive, num_draft_tokens=2)
    if adaptive:
        fix_costs(llm, {1: 0.1, 128: 0.12, 256: 0.13, 512: 0.3})
    params = SamplingParams(top_k=4, logit_bias={EOS_TOKEN_ID: 4.0}, max_tokens=4)
    outputs = llm.generate([[5, 6]] * num, [params.replace(seed=seed) for seed in range(num)])
    counts = Counter(o.outputs[0].token_ids[:3] for o in outputs)

    def distribution(*tokens: int) -> dict[int, float]:
        logits = table_next_logits([5, 6, *tokens]).clone()
        logits[EOS_TOKEN_ID] += 4.0
        if refining:
            logits[FORBIDDEN:] = -torch.inf
        p = truncate(logits.unsqueeze(0), [params])[0].double().softmax(-1)
        return {t: float(p[t]) for t in range(VOCAB_SIZE) if p[t] > 0}

    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for tokens, chance in expected.items():
            if tokens[-1:] == (EOS_TOKEN_ID,):
                longer[tokens] = chance
            else:
                longer |= {(*tokens, t): chance * p for t, p in distribution(*tokens).items()}
        expected = longer
    assert set(counts) <= set(expected)
    assert EOS_TOKEN_ID in {tokens[0] for tokens in expected}
    common = {tokens: chance for tokens, chance in expected.items() if chance * num >= 5}
    observed = np.array([counts[t] for t in common], dtype=float)
    wanted = np.array([num * c for c in common.values()])
    rest = num - wanted.sum()
    observed, wanted = np.append(observed, num - observed.sum()), np.append(wanted, rest)
    if rest < 5:
        observed, wanted = observed[:-1], wanted[:-1]
    chi_square, freedom = float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5
    verified = sum(s.num_draft_tokens for s in watcher.steps)
    accepted = sum(s.num_accepted_tokens for s in watcher.steps)
    assert 0.1 * verified < accepted < 0.9 * verified
    assert not llm.engine.core._executor._drafting.probs


def test_drawn_drafts_are_reproducible_in_any_company(make_llm) -> None:
    params = SamplingParams(seed=11, max_tokens=24, ignore_eos=True)
    found = set()
    for mates in (0, 3):
        llm = make_llm(plugins=[DrawingDrafter(lambda s, n: [])], drafter="scripted", verifier="rejection",
                       num_draft_tokens=3)  # fmt: skip
        prompts = [[7, 8]] * mates + [[5, 6]]
        found.add(llm.generate(prompts, params)[-1].outputs[0].token_ids)
    assert len(found) == 1
