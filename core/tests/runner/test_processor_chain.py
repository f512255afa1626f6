"""The chain of logits processors: order, background work, and failures that stay where they belong."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from octavo import SamplingParams
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, PluginError
from octavo.hookspecs import hookimpl
from octavo.plugins import load_extensions
from octavo.request import Request
from octavo.runner.input_batch import RunnerSequence
from octavo.runner.processing import ProcessorChain
from octavo.spec import LogitsProcessorEntry, ProcessorContext


class Recorder:
    """A processor that writes down every call, and fails where it is told to."""

    def __init__(self, name: str, order: int, log: list[Any], always: bool = False) -> None:
        self.name, self.order, self.log, self.always = name, order, log, always
        self.answer: Any = True
        self.fail_in: set[str] = set()
        self.complete_with: int | None = None
        self.refines = False

    def make(self, context: ProcessorContext) -> Recorder:
        self._did("make", context.vocab_size)
        return self

    def _did(self, what: str, detail: Any) -> None:
        self.log.append((what, self.name, detail))
        if what in self.fail_in:
            raise RuntimeError(f"{self.name} cannot {what}")

    def attach(self, sequence) -> Any:
        self._did("attach", sequence.sequence_id)
        return self.answer(sequence) if callable(self.answer) else self.answer

    def prepare(self, rows) -> None:
        self._did("prepare", [r.index for r in rows])

    def apply(self, logits, rows) -> None:
        self._did("apply", [r.index for r in rows])
        for row in rows:
            logits[row.index] += 1

    def accept(self, sequence, token_ids) -> int | None:
        self._did("accept", (sequence.sequence_id, list(token_ids)))
        return self.complete_with

    def refine_drafts(self, sequence, draft_token_ids, max_drafts) -> list[int]:
        self._did("refine", (list(draft_token_ids), max_drafts))
        return [*draft_token_ids, 9]

    def release(self, sequence_id: int) -> None:
        self._did("release", sequence_id)


class Recorders:
    """The plugin that offers them."""

    def __init__(self, recorders: list[Recorder]) -> None:
        self._recorders = recorders

    @hookimpl
    def octavo_register_logits_processors(self) -> list[LogitsProcessorEntry]:
        return [
            LogitsProcessorEntry(name=r.name, factory=r.make, always=r.always, order=r.order, refines_drafts=r.refines)
            for r in self._recorders
        ]


class Setup:
    def __init__(self, *specs: tuple[str, int, bool], configured: tuple[str, ...] = ()) -> None:
        self.log: list[Any] = []
        self.plugins = {name: Recorder(name, order, self.log, always) for name, order, always in specs}
        self.configured = configured
        self.chain: ProcessorChain

    def build(self) -> Setup:
        config = EngineConfig(autoload_plugins=False)
        self.extensions = load_extensions(config, plugins=[Recorders(list(self.plugins.values()))])

        def context(offer) -> ProcessorContext:
            return ProcessorContext(
                options=None,
                tokenizer=None,
                vocab_size=8,
                device=torch.device("cpu"),
                max_num_seqs=4,
                max_num_draft_tokens=2,
            )

        self.chain = ProcessorChain(self.extensions, self.configured, context)
        return self

    def did(self, what: str) -> list[Any]:
        return [(name, detail) for event, name, detail in self.log if event == what]


def sequence_of(sequence_id: int, *named: str) -> RunnerSequence:
    request = Request(
        request_id="r",
        prompt_token_ids=(1, 2),
        sampling_params=SamplingParams(),
        processors=named,
        seed=0,
        eos_token_ids=frozenset(),
        max_tokens=4,
        arrival_time=0.0,
    )
    return RunnerSequence(sequence_id, request, 0)


def attached(setup: Setup, *sequences: RunnerSequence) -> None:
    for sequence in sequences:
        setup.chain.attach(sequence)
    assert all(a.error is None for a in setup.chain.poll(0))


def test_processors_work_in_rising_order_then_by_name() -> None:
    setup = Setup(("late", 100, False), ("b", 5, False), ("early", -3, False), ("a", 5, False)).build()
    sequence = sequence_of(1, "late", "b", "early", "a")
    attached(setup, sequence)
    work = setup.chain.rows_for([sequence], [()], [0])
    errors: dict[int, str] = {}
    setup.chain.prepare(work, errors)
    setup.chain.apply(work, torch.zeros(1, 8), errors)
    assert setup.chain.accept(sequence, [3], {}) is None
    order = ["early", "a", "b", "late"]
    for what in ("attach", "prepare", "apply", "accept"):
        assert [name for name, _ in setup.did(what)] == order
    assert not errors


def test_each_processor_sees_only_the_rows_of_its_own_sequences() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False)).build()
    sequences = [sequence_of(1, "a"), sequence_of(2), sequence_of(3, "a", "b")]
    attached(setup, *sequences)
    work = setup.chain.rows_for(sequences, [(7, 8), (), (9,)], [0, 3, 4, 6])
    assert [name for name, _ in work] == ["a", "b"]
    seen = [[(r.index, r.sequence.sequence_id, r.draft_token_ids) for r in rows] for _, rows in work]
    assert seen[0] == [(0, 1, ()), (1, 1, (7,)), (2, 1, (7, 8)), (4, 3, ()), (5, 3, (9,))]
    assert seen[1] == [(4, 3, ()), (5, 3, (9,))]
    logits = torch.zeros(6, 8)
    setup.chain.apply(work, logits, {})
    assert logits[:, 0].tolist() == [1, 1, 1, 0, 2, 2]


def test_configured_ones_see_every_request_and_others_only_those_that_name_them() -> None:
    setup = Setup(("always", 1, True), ("configured", 2, False), ("idle", 3, False), configured=("configured",)).build()
    attached(setup, sequence_of(1))
    assert setup.did("attach") == [("always", 1), ("configured", 1)]
    assert [name for name, _ in setup.did("make")] == ["always", "configured"], "idle ones are not even made"
    attached(setup, sequence_of(2, "idle"), sequence_of(3, "idle"))
    assert [name for name, _ in setup.did("make")] == ["always", "configured", "idle"]


def test_one_that_is_not_interested_is_never_called_again() -> None:
    setup = Setup(("a", 1, False)).build()
    setup.plugins["a"].answer = False
    sequence = sequence_of(1, "a")
    attached(setup, sequence)
    assert setup.chain.rows_for([sequence], [()], [0]) == []
    setup.chain.accept(sequence, [1], {})
    setup.chain.release(1)
    assert [event for event, *_ in setup.log] == ["make", "attach"]


def test_background_work_is_waited_for_without_holding_others_up() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False)).build()
    futures: dict[tuple[str, int], Future[Any]] = {}
    for name in "ab":
        setup.plugins[name].answer = lambda s, name=name: futures.setdefault((name, s.sequence_id), Future())
    for sequence_id in (1, 2):
        setup.chain.attach(sequence_of(sequence_id, "a", "b"))
    setup.chain.attach(sequence_of(3))
    assert [a.sequence_id for a in setup.chain.poll(0)] == [3]
    futures["a", 1].set_result(None)
    assert setup.chain.poll(0) == []
    futures["b", 1].set_result(None)
    assert [(a.sequence_id, a.error) for a in setup.chain.poll(0)] == [(1, None)]
    futures["b", 2].set_exception(InvalidRequestError("grammar", "does not parse"))
    (failed,) = setup.chain.poll(0)
    assert failed.sequence_id == 2, "one failure is enough; nobody waits for the rest"
    assert failed.error == "grammar: does not parse"
    assert futures["a", 2].cancelled()
    for sequence_id in (1, 2, 3):
        setup.chain.release(sequence_id)
    assert sorted(setup.did("release")) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_waiting_sleeps_until_something_is_ready() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False)).build()
    done, later = Future(), Future()
    done.set_result(None)
    setup.plugins["a"].answer, setup.plugins["b"].answer = done, later
    setup.chain.attach(sequence_of(1, "a", "b"))
    started = time.perf_counter()
    assert setup.chain.poll(0.1) == [], "the part that is ready must not end the wait"
    assert time.perf_counter() - started >= 0.09
    timer = threading.Timer(0.05, later.set_result, [None])
    timer.start()
    started = time.perf_counter()
    assert [a.sequence_id for a in setup.chain.poll(60)] == [1]
    assert time.perf_counter() - started < 50
    timer.join()


def test_work_that_a_processor_cancels_fails_the_request_and_nothing_else() -> None:
    setup = Setup(("a", 1, False)).build()
    future: Future[Any] = Future()
    setup.plugins["a"].answer = future
    setup.chain.attach(sequence_of(1, "a"))
    future.cancel()
    (failed,) = setup.chain.poll(0)
    assert failed.error is not None
    setup.chain.release(1)
    assert setup.did("release") == [("a", 1)]


def test_releasing_early_cancels_background_work() -> None:
    setup = Setup(("a", 1, False)).build()
    future: Future[Any] = Future()
    setup.plugins["a"].answer = future
    setup.chain.attach(sequence_of(1, "a"))
    setup.chain.release(1)
    assert future.cancelled()
    assert setup.chain.poll(0) == []
    setup.chain.release(1)
    assert setup.did("release") == [("a", 1)], "exactly once"


def test_when_attaching_fails_half_way_those_before_are_released_once_and_no_other() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False), ("c", 3, False)).build()
    future: Future[Any] = Future()
    setup.plugins["a"].answer = future
    setup.plugins["b"].fail_in = {"attach"}
    setup.chain.attach(sequence_of(1, "a", "b", "c"))
    (failed,) = setup.chain.poll(0)
    assert failed.error is not None
    assert "'b'" in failed.error
    assert "b cannot attach" in failed.error
    assert future.cancelled()
    setup.chain.release(1)
    setup.chain.release(1)
    assert setup.did("release") == [("a", 1)]
    assert [name for name, _ in setup.did("attach")] == ["a", "b"]


@pytest.mark.parametrize("where", ["prepare", "apply"])
def test_a_failure_ends_the_sequences_whose_rows_were_passed_and_no_others(where: str) -> None:
    setup = Setup(("a", 1, False), ("b", 2, False)).build()
    sequences = [sequence_of(1, "a", "b"), sequence_of(2, "b"), sequence_of(3)]
    attached(setup, *sequences)
    setup.plugins["a"].fail_in = {where}
    work = setup.chain.rows_for(sequences, [(), (), ()], [0, 1, 2])
    errors: dict[int, str] = {}
    setup.chain.prepare(work, errors)
    setup.chain.apply(work, torch.zeros(3, 8), errors)
    assert list(errors) == [1]
    assert f"a cannot {where}" in errors[1]
    assert setup.did("apply")[-1] == ("b", [1]), "a failed sequence's rows are left out"


def test_a_failure_to_accept_is_reported_for_that_sequence() -> None:
    setup = Setup(("a", 1, False)).build()
    sequence = sequence_of(1, "a")
    attached(setup, sequence)
    setup.plugins["a"].fail_in = {"accept"}
    errors: dict[int, str] = {}
    setup.chain.accept(sequence, [1], errors)
    assert list(errors) == [1]
    assert "a cannot accept" in errors[1]


def test_the_output_is_complete_with_the_fewest_tokens_that_a_processor_names() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False), ("c", 3, False)).build()
    sequence = sequence_of(1, "a", "b", "c")
    attached(setup, sequence)
    setup.plugins["a"].complete_with = 3
    setup.plugins["c"].complete_with = 2
    assert setup.chain.accept(sequence, [1, 2, 3], {}) == 2


def test_only_those_that_refine_drafts_see_them() -> None:
    setup = Setup(("a", 1, False), ("b", 2, False))
    setup.plugins["b"].refines = True
    setup.build()
    sequence = sequence_of(1, "a", "b")
    attached(setup, sequence)
    assert setup.chain.refine(sequence, [4, 5], 3, {}) == [4, 5, 9]
    assert setup.did("refine") == [("b", ([4, 5], 3))]


def test_a_failure_to_release_does_not_keep_others_from_it(caplog) -> None:
    setup = Setup(("a", 1, False), ("b", 2, False)).build()
    attached(setup, sequence_of(1, "a", "b"))
    setup.plugins["a"].fail_in = {"release"}
    setup.chain.release(1)
    assert setup.did("release") == [("a", 1), ("b", 1)]
    assert "failed to release" in caplog.text


def test_one_that_cannot_be_made_is_an_error_that_names_its_plugin() -> None:
    setup = Setup(("a", 1, True))
    setup.plugins["a"].fail_in = {"make"}
    with pytest.raises(PluginError, match=r"Recorders.*'a'.*RuntimeError"):
        setup.build()


def test_one_that_a_request_names_and_that_cannot_be_made_fails_that_request() -> None:
    setup = Setup(("a", 1, False)).build()
    setup.plugins["a"].fail_in = {"make"}
    setup.chain.attach(sequence_of(1, "a"))
    setup.chain.attach(sequence_of(2))
    assert [(a.sequence_id, a.error is None) for a in setup.chain.poll(0)] == [(1, False), (2, True)]


def test_names_that_nobody_offers_are_errors() -> None:
    with pytest.raises(PluginError, match="'nobody'"):
        Setup(configured=("nobody",)).build()
    setup = Setup().build()
    setup.chain.attach(sequence_of(1, "nobody"))
    (failed,) = setup.chain.poll(0)
    assert failed.error is not None
    assert "'nobody'" in failed.error
