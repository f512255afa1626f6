"""Laws of executors: wherever the runner runs, the results are those of the runner in this process.

Owns: `ExecutorSuite`. Must never know: processes, machines.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import psutil
import pytest
import torch

from octavo.request import FinishReason
from octavo.sampling_params import SamplingParams
from octavo.spec import Executor, SequenceView
from octavo.step import Attachment, AttachRequest, SchedulerOutput, StepResult
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.suites.circumstances import (
    MAX_MODEL_LEN,
    WITH_DRAFTS,
    check_in_circumstance,
    draw_jobs,
)
from octavo.testing.suites.subject import PluginSuite, no_errors_logged, sequence
from octavo.testing.table_model import VOCAB_SIZE
from octavo.testing.workload import Job, run_jobs

PATIENCE = 10.0
"""Seconds to wait for what an executor does in the background."""


class ExecutorSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "executors"

    settings: ClassVar[Mapping[str, Any]] = {}
    takes_objects: bool = True
    """Whether plugins that are objects of this process work in it; if not, laws with scripted plugins are skipped."""

    def executing_llm(self, **keywords: Any) -> Any:
        """An `LLM` whose runner runs where the executor under test wants it."""
        return self.llm(executor=self.offer.entry.name, **self.settings, **keywords)

    def scripted_llm(self, *plugins: Any, **keywords: Any) -> Any:
        if not self.takes_objects:
            pytest.skip("it declares that it takes no plugins that are objects")
        return self.executing_llm(plugins=plugins, **keywords)

    # Laws

    @pytest.mark.parametrize(("circumstance", "drafter"), WITH_DRAFTS)
    def test_the_tokens_are_those_of_the_runner_in_this_process(self, circumstance: str, drafter: str) -> None:
        """With every sampling option, aborts, preemption, drafts."""
        if drafter != "none" and not self.takes_objects:
            pytest.skip("it declares that it takes no plugins that are objects")
        plain = self.llm(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
        check_in_circumstance(circumstance, plain, self.executing_llm, drafter=drafter)

    def test_a_recorded_run_has_the_same_results_step_by_step(self) -> None:
        """Drafts, log probabilities and all: plans of another engine, played to the executor."""

        def engine_of(llm: Any, **keywords: Any) -> Any:
            plugins = [ScriptedDrafter(_copy)] if self.takes_objects else []
            drafting = {"drafter": "scripted"} if plugins else {}
            return llm(plugins=plugins, max_model_len=MAX_MODEL_LEN, block_size=4, num_blocks=60, **drafting).engine

        original, played = engine_of(self.llm), engine_of(self.executing_llm)
        recorder = original.core._executor = _Recorder(original.core._executor)
        jobs = draw_jobs(random.Random(5), VOCAB_SIZE)
        with no_errors_logged():
            run_jobs(original, jobs)
            _play(recorder.calls, played.core._executor)
        played.shutdown()

    def test_attached_sequences_become_ready_or_fail_each_for_itself(self) -> None:
        waiting: dict[int, Future[None]] = {3: Future(), 4: Future()}

        def attach(view: SequenceView) -> bool | Future[None]:
            wish = view.request.sampling_params.extra_args["scripted"]
            if wish == "refuse":
                raise ValueError("not this one")
            return waiting[view.sequence_id] if wish == "wait" else True

        llm = self.scripted_llm(ScriptedProcessor(on_attach=attach))
        executor: Executor = llm.engine.core._executor
        executor.attach([_request(i, wish) for i, wish in ((1, "go"), (2, "refuse"), (3, "wait"), (4, "wait"))])
        settled = _poll(executor, {1, 2})
        assert settled[1] is None
        assert "not this one" in (settled[2] or "")
        executor.detach([4])
        waiting[3].set_result(None)
        assert _poll(executor, {3}) == {3: None}
        for _ in range(2):  # twice does no harm, nor do ids that nobody attached
            executor.detach([1, 2, 3, 4, 77])
        assert not executor.poll()
        llm.shutdown()

    def test_a_processor_that_fails_ends_its_own_sequence(self) -> None:
        def fail_at_third(logits: torch.Tensor, tokens: list[int]) -> None:
            if len(tokens) == 5 and tokens[0] == 9:
                raise ValueError("no more of this")

        llm = self.scripted_llm(ScriptedProcessor(fail_at_third))
        own = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, extra_args={"scripted": True})
        params = [own.replace(extra_args={}), own, own.replace(extra_args={})]
        prompts = [[5, 6, 7], [9, 6, 7], [5, 6]]
        outputs = [o.outputs[0] for o in llm.generate(prompts, params)]
        assert [o.finish_reason for o in outputs] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
        assert "no more of this" in (outputs[1].error or "")
        expected = [o.outputs[0] for o in self.llm().generate(prompts, own.replace(extra_args={}))]
        assert [outputs[i].token_ids for i in (0, 2)] == [expected[i].token_ids for i in (0, 2)]
        assert llm.generate([prompts[0]], params[0])[0].outputs[0].token_ids == expected[0].token_ids
        llm.shutdown()

    def test_every_sequence_is_released_once(self) -> None:
        """Finished, aborted before or after its first step, or refused: its drafter and processors hear of it."""
        drafter, processor = ScriptedDrafter(_copy), ScriptedProcessor(always=True)
        llm = self.scripted_llm(drafter, processor, drafter="scripted", max_model_len=MAX_MODEL_LEN)
        jobs = draw_jobs(random.Random(3), VOCAB_SIZE)
        jobs.append(Job(prompt=(5, 6), params=jobs[0].params, aborted=0))
        run_jobs(llm.engine, jobs)
        num_sequences = sum(job.params.n for job in jobs)
        assert sorted(drafter.released) == list(range(1, num_sequences + 1))
        assert sorted(i for i, _ in processor.released) == list(range(1, num_sequences + 1))
        llm.shutdown()

    def test_a_step_with_nothing_to_do_has_an_empty_result(self) -> None:
        llm = self.executing_llm()
        executor: Executor = llm.engine.core._executor
        for step_id in (7, 8):
            executor.launch(SchedulerOutput(step_id, (), (), (), ()))
            assert executor.collect() == StepResult(step_id, ())
        llm.shutdown()

    def test_it_tells_what_it_runs_and_needs(self) -> None:
        plain, llm = self.llm(), self.executing_llm()
        executor: Executor = llm.engine.core._executor
        assert executor.kv_cache_specs() == plain.engine.core._executor.kv_cache_specs()
        assert executor.num_lookahead_tokens == 0
        description = executor.describe()
        assert {"device", "dtype", "attention"} <= set(description)
        assert all(isinstance(text, str) for text in description.values())
        costs = executor.measure_step_costs([1, 2, 4])
        assert 1 <= len(costs) <= 3
        assert all(seconds > 0 for seconds in costs)
        assert executor.profile() > 0
        llm.shutdown()

    def test_it_can_be_shut_down_twice_and_leaves_nothing(self) -> None:
        process = psutil.Process()
        children, threads = set(process.children(recursive=True)), set(threading.enumerate())
        for _ in range(2):
            llm = self.executing_llm()
            llm.generate([[5, 6]], SamplingParams(max_tokens=3))
            llm.engine.add_request("under-way", [5, 6, 7], SamplingParams(max_tokens=50, ignore_eos=True))
            llm.engine.step()
            llm.shutdown()
            llm.shutdown()
        deadline = time.monotonic() + PATIENCE
        while True:
            left = [p for p in process.children(recursive=True) if p not in children and p.status() != "zombie"]
            alive = [t for t in threading.enumerate() if t not in threads]
            if not left and not alive:
                return
            assert time.monotonic() < deadline, f"left over: {left} {alive}"
            time.sleep(0.05)

    def test_two_engines_in_one_process_do_not_meet(self) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        prompts = [[5, 6, 7], [9, 8]]
        expected = [self.llm().generate([p], params)[0].outputs[0].token_ids for p in prompts]
        engines = [self.executing_llm().engine for _ in prompts]
        for engine, prompt in zip(engines, prompts, strict=True):
            engine.add_request("same", prompt, params)
        found: list[Any] = [None, None]
        while any(engine.has_unfinished_requests() for engine in engines):
            for i, engine in enumerate(engines):
                for output in engine.step():
                    found[i] = output.outputs[0].token_ids
        assert found == expected
        for engine in engines:
            engine.shutdown()


def _copy(view: SequenceView, most: int) -> Sequence[int]:
    """Drafts that depend on the sequence alone, right or not."""
    return view.token_ids[:most].tolist()


def _request(sequence_id: int, wish: str) -> AttachRequest:
    params = SamplingParams(extra_args={"scripted": wish})
    view = sequence(sequence_id, [5, 6], params=params, processors=("scripted",))
    return AttachRequest(sequence_id, view.request, 0)


def _poll(executor: Executor, wanted: set[int]) -> dict[int, str | None]:
    """Wait until the wanted sequences are settled; their errors by id. None but them may be."""
    settled: dict[int, str | None] = {}
    deadline = time.monotonic() + PATIENCE
    while not wanted <= set(settled):
        assert time.monotonic() < deadline, f"waited in vain for {wanted - set(settled)}"
        settled |= {a.sequence_id: a.error for a in executor.poll(0.1)}
    assert set(settled) == wanted
    return settled


class _Recorder:
    """An executor that writes down what it is asked and what it answers."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.executor, name)
        if not callable(value):
            return value

        def call(*arguments: Any) -> Any:
            answer = value(*arguments)
            self.calls.append((name, arguments, answer))
            return answer

        return call


def _play(calls: Sequence[tuple[str, tuple[Any, ...], Any]], executor: Executor) -> None:
    for name, arguments, answer in calls:
        if name == "poll":
            ready: Sequence[Attachment] = answer
            if ready:
                assert _poll(executor, {a.sequence_id for a in ready}) == {a.sequence_id: a.error for a in ready}
            continue
        found = getattr(executor, name)(*arguments)
        if name == "collect":
            assert found.step_id == answer.step_id
            for one, other in zip(found.sequences, answer.sequences, strict=True):
                for field in ("sequence_id", "token_ids", "draft_token_ids", "error", "complete"):
                    assert getattr(one, field) == getattr(other, field), f"{field} of {one} in step {found.step_id}"
                for field in ("logprobs", "prompt_logprobs"):
                    assert str(getattr(one, field)) == str(getattr(other, field))
