"""The machinery around grammar backends, with the smallest one: masks, drafts, ends, background work, the cache."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from octavo import SamplingParams, StructuredOutputsParams, grammar
from octavo.config import StructuredOutputsConfig
from octavo.errors import InvalidRequestError
from octavo.grammar import GrammarCache, GrammarProcessor
from octavo.hookspecs import hookimpl
from octavo.request import FinishReason
from octavo.spec import LogitsProcessorEntry
from octavo.testing.choice_grammar import ChoiceBackend, ChoicePlugin
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import EOS_TOKEN_ID, table_llm

CHOICES = ["ABCDEFGH", "ABCDEXYZ", "Q", "QQ"]


def guided(choices: list[str] = CHOICES, **options: Any) -> SamplingParams:
    defaults: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
    return SamplingParams(structured_outputs=StructuredOutputsParams(choice=choices), **(defaults | options))


def test_output_is_one_of_the_choices_and_ends_when_nothing_can_follow() -> None:
    llm = table_llm(plugins=[ChoicePlugin()])
    outputs = llm.generate([[5, 6], [7, 8], [9, 10]] * 4, guided(temperature=1.0, n=3))
    texts = {completion.text for output in outputs for completion in output.outputs}
    assert len(texts) > 2
    assert texts <= set(CHOICES)
    for output in outputs:
        for completion in output.outputs:
            assert completion.finish_reason is FinishReason.STOP
            ended_by_token = completion.token_ids[-1] == EOS_TOKEN_ID
            assert ended_by_token == (completion.text == "Q"), "only Q could have gone on"


def test_without_eos_an_output_that_could_go_on_goes_on() -> None:
    llm = table_llm(plugins=[ChoicePlugin()])
    for output in llm.generate([[5, i] for i in range(20)], guided(["Q", "QQ"], ignore_eos=True)):
        assert output.outputs[0].text == "QQ"
        assert output.outputs[0].finish_reason is FinishReason.STOP


def test_minimum_length_does_not_keep_a_whole_output_from_ending() -> None:
    (output,) = table_llm(plugins=[ChoicePlugin()]).generate([[5]], guided(["ABC"], min_tokens=10))
    assert (output.outputs[0].text, output.outputs[0].error) == ("ABC", None)


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_drafts_that_fit_and_that_break_the_grammar_change_nothing(jump_forward: bool, temperature: float) -> None:
    def propose(sequence: Any, most: int) -> list[int]:
        word = CHOICES[sequence.num_tokens % len(CHOICES)][len(sequence.output_token_ids) :]
        ids = [plain.engine.tokenizer.encode(c)[0] for c in word]
        return [*ids, EOS_TOKEN_ID, 5, 5]

    plain = table_llm(plugins=[ChoicePlugin()], jump_forward=False)
    drafter = ScriptedDrafter(propose)
    drafted = table_llm(
        plugins=[ChoicePlugin(), drafter], drafter="scripted", num_draft_tokens=6, jump_forward=jump_forward
    )
    prompts = [[5, i] for i in range(30)]
    options = guided(temperature=temperature, seed=3, logprobs=2)
    for one, other in zip(plain.generate(prompts, options), drafted.generate(prompts, options), strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].finish_reason == other.outputs[0].finish_reason
        assert len(other.outputs[0].logprobs) == len(other.outputs[0].token_ids)
    assert drafter.num_accepted > 0


def test_forced_text_needs_fewer_steps_without_any_drafter() -> None:
    def num_steps(**options: Any) -> int:
        llm = table_llm(plugins=[ChoicePlugin()], **options)
        (output,) = llm.generate([[5]], guided(["ABCDEFGHIJKL"]))
        assert output.outputs[0].text == "ABCDEFGHIJKL"
        return llm.engine.core.last_stats.step_id

    assert num_steps(num_draft_tokens=4) <= 4 < 12 <= num_steps(jump_forward=False)


def test_a_model_that_prefers_nothing_that_is_allowed_still_obeys() -> None:
    llm = table_llm(plugins=[ChoicePlugin()])
    forbidden = llm.engine.tokenizer.encode("A")[0]
    (output,) = llm.generate([[5]], guided(["A"], logit_bias={forbidden: -100.0}))
    assert output.outputs[0].text == "A"
    (output,) = llm.generate([[5]], guided(["A"], allowed_token_ids=[9]))
    assert "exclude them all" in (output.outputs[0].error or "")
    assert llm.generate([[5]], guided(["A"]))[0].outputs[0].text == "A"


class SlowPlugin:
    """A backend whose compilations wait for `release`, or fail."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.compiled: list[tuple[str, ...]] = []

    @hookimpl
    def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
        kinds = frozenset({"choice"})
        return [LogitsProcessorEntry(name="slow", factory=self.make, order=100, grammar_kinds=kinds)]

    def make(self, context: Any) -> GrammarProcessor:
        plugin, backend = self, ChoiceBackend(context)

        class Backend:
            fill_bitmask = staticmethod(backend.fill_bitmask)
            shutdown = staticmethod(plugin.release.set)

            def compile(self, params: StructuredOutputsParams) -> Any:
                plugin.compiled.append(tuple(params.choice or ()))
                assert plugin.release.wait(20)
                if params.choice == ("bad",):
                    raise InvalidRequestError("structured_outputs", "it is bad")
                return backend.compile(params)

        return GrammarProcessor(Backend(), context)


def test_requests_wait_for_their_grammar_alone_share_it_and_fail_alone() -> None:
    plugin = SlowPlugin()
    llm = table_llm(plugins=[plugin], adaptive=True)
    engine = llm.engine
    for i in range(3):
        engine.add_request(f"good-{i}", [5, i], guided(["ABC"]))
    engine.add_request("bad", [5], guided(["bad"]))
    engine.add_request("gone", [5], guided(["ABC"]))
    engine.add_request("plain", [5], SamplingParams(max_tokens=5, ignore_eos=True))
    done: dict[str, Any] = {}

    def step() -> None:
        done.update({output.request_id: output.outputs[0] for output in engine.step() if output.finished})

    while "plain" not in done:
        step()
    assert set(done) == {"plain"}
    step()  # with nothing in it
    engine.abort_request("gone")
    plugin.release.set()
    while engine.has_unfinished_requests():
        step()
    assert {done[f"good-{i}"].text for i in range(3)} == {"ABC"}
    assert "it is bad" in done["bad"].error
    assert sorted(plugin.compiled) == [("ABC",), ("bad",)]
    assert llm.generate([[7]], guided(["ABC"]))[0].outputs[0].text == "ABC"
    assert len(plugin.compiled) == 2
    assert "it is bad" in llm.generate([[7]], guided(["bad"]))[0].outputs[0].error
    assert len(plugin.compiled) == 3, "a failure is not kept"


class _Grammar:
    num_bytes = 10

    def matcher(self, stop_token_ids: frozenset[int]) -> Any: ...


class _CountingBackend:
    def __init__(self) -> None:
        self.compiled: list[str] = []

    def compile(self, params: StructuredOutputsParams) -> _Grammar:
        self.compiled.append(params.source)
        return _Grammar()

    def fill_bitmask(self, work: Any, bitmask: np.ndarray) -> None: ...

    def shutdown(self) -> None: ...


def test_the_cache_keeps_the_most_recently_used_within_its_bound() -> None:
    backend = _CountingBackend()
    cache = GrammarCache(backend, StructuredOutputsConfig(max_cached_bytes=25))

    def get(regex: str) -> Future[Any]:
        future = cache.get(StructuredOutputsParams(regex=regex))
        future.result(timeout=5)
        return future

    for regex in "abaca":
        get(regex)
    assert backend.compiled == list("abc")
    get("b")
    assert backend.compiled == list("abcb"), "b had to go for c"


def test_a_source_that_is_too_large_is_refused_by_its_size() -> None:
    llm = table_llm(plugins=[ChoicePlugin()], max_source_bytes=100)
    (output,) = llm.generate([[5]], guided(["A" * 200]))
    assert "structured_outputs.max_source_bytes" in (output.outputs[0].error or "")


def test_masks_forbid_padding_and_leave_other_rows_alone() -> None:
    llm = table_llm(plugins=[ChoicePlugin()])
    (plain,) = llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    mixed = llm.generate(
        [[5, 6], [5, 6]], [SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), guided(["Q"])]
    )
    assert mixed[0].outputs[0].token_ids == plain.outputs[0].token_ids
    assert mixed[1].outputs[0].text == "Q"


def test_backends_are_chosen_by_request_then_configuration_then_priority() -> None:
    llm = table_llm(plugins=[ChoicePlugin(), SlowPlugin()], grammar_backend="choices")
    assert llm.engine.inputs.make_request("r", [5], guided()).processors == ("choices",)
    named = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["A"], backend="slow"))
    assert llm.engine.inputs.make_request("r", [5], named).processors == ("slow",)
    for params, message in (
        (StructuredOutputsParams(choice=["A"], backend="fast"), r"'fast' for choice; there is: choices, slow"),
        (StructuredOutputsParams(regex="a"), r"'choices' for regex; `octavo plugins`"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            llm.engine.inputs.make_request("r", [5], SamplingParams(structured_outputs=params))
    with pytest.raises(InvalidRequestError, match="no grammar backend for choice"):
        table_llm().generate([[5]], guided())


def test_a_matcher_that_cannot_go_on_ends_its_own_sequence_with_its_reason() -> None:
    class TiredPlugin(ChoicePlugin):
        """Its matchers give up on texts that begin with Q."""

        @hookimpl
        def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
            kinds = frozenset({"choice"})
            return [LogitsProcessorEntry(name="tired", factory=self.make, order=100, grammar_kinds=kinds)]

        def make(self, context: Any) -> GrammarProcessor:
            class Backend(ChoiceBackend):
                def fill_bitmask(self, work: Any, bitmask: np.ndarray) -> None:
                    super().fill_bitmask(work, bitmask)
                    for item in work:
                        if item.matcher.forced_text().startswith("Q"):
                            item.matcher.failure = "it is tired"

            return GrammarProcessor(Backend(context), context)

    llm = table_llm(plugins=[TiredPlugin()])
    good, bad = llm.generate([[5], [6]], [guided(["ABC"]), guided(["QQ"])])
    assert good.outputs[0].text == "ABC"
    assert bad.outputs[0].error == "structured_outputs: it is tired"


def test_compilations_that_nobody_waits_for_are_dropped_and_an_engine_that_ends_ends_them() -> None:
    plugin = SlowPlugin()
    llm = table_llm(plugins=[plugin])
    for i in range(40):
        llm.engine.add_request(f"r{i}", [5], guided([f"A{i}"]))
    llm.engine.step()
    num_begun = grammar._NUM_COMPILE_THREADS
    for _ in range(20_000):
        if len(plugin.compiled) == num_begun:
            break
        time.sleep(0.001)
    assert len(plugin.compiled) == num_begun
    for i in range(40):
        llm.engine.abort_request(f"r{i}")
    llm.shutdown()
    assert plugin.release.is_set()
    assert len(plugin.compiled) == num_begun


@pytest.mark.parametrize("answer", [0, -3, 99, 1.5, "x"])
def test_a_processor_that_answers_nonsense_ends_its_own_sequences(answer: Any) -> None:
    class Odd(ScriptedProcessor):
        def accept(self, sequence: Any, token_ids: Any) -> Any:
            super().accept(sequence, token_ids)
            return answer

    llm = table_llm(plugins=[Odd()])
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    named = SamplingParams(**options, extra_args={"scripted": True})
    odd, plain = llm.generate([[5], [6]], [named, SamplingParams(**options)])
    assert "'scripted'" in (odd.outputs[0].error or "")
    assert len(plain.outputs[0].token_ids) == 4
