"""Requests that come, go and fail between steps: whatever happens to one, the engine serves the next."""

from __future__ import annotations

import contextlib
import random
import re
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.engine.output_processor import OutputKind
from octavo.errors import CapacityError, ConfigError, InvalidRequestError, PluginError
from octavo.hookspecs import hookimpl
from octavo.request import FinishReason, RequestOutput
from octavo.spec import DrafterEntry, ExecutorEntry, Observer
from octavo.testing.scripted import ScriptedDrafter, ScriptedProcessor
from octavo.testing.table_model import VOCAB_SIZE, table_llm

IDS = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def finish(engine) -> dict[str, RequestOutput]:
    """Step until nothing is left; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    for _ in range(1000):
        if not engine.has_unfinished_requests():
            return last
        for output in engine.step():
            last[output.request_id] = output
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def tokens(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


def test_requests_may_be_added_between_steps(llm, greedy) -> None:
    engine, last = llm.engine, {}
    for i in range(12):
        engine.add_request(f"r{i}", [i + 2], GREEDY)
        last |= {o.request_id: o for o in engine.step()}
    last |= finish(engine)
    for i in range(12):
        assert tokens(last[f"r{i}"]) == greedy([i + 2], 8)


@pytest.mark.parametrize("kind", list(OutputKind))
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_an_abort_ends_a_request_at_any_moment(llm, greedy, kind: OutputKind, n: int, steps: int) -> None:
    engine = llm.engine
    engine.add_request("x", IDS, GREEDY.replace(n=n, temperature=1.0, seed=1), kind)
    engine.add_request("mate", [9], GREEDY)
    for _ in range(steps):
        engine.step()
    assert engine.abort_request("x") is True
    assert engine.abort_request("x") is False
    last = finish(engine)
    assert last["x"].finished
    assert [c.finish_reason for c in last["x"].outputs] == [FinishReason.ABORT] * n
    if kind is not OutputKind.DELTA:
        assert [len(c.token_ids) for c in last["x"].outputs] == [steps] * n
    assert tokens(last["mate"]) == greedy([9], 8)
    assert engine.abort_request("x") is False
    assert engine.abort_request("mate") is False
    assert engine.abort_request("nobody") is False
    assert engine.step() == []


def test_an_abort_during_a_chunked_prompt(make_llm, greedy) -> None:
    llm = make_llm(max_num_batched_tokens=4, block_size=4)
    llm.engine.add_request("x", [5] * 30, GREEDY)
    for _ in range(3):
        llm.engine.step()
    llm.engine.abort_request("x")
    assert finish(llm.engine)["x"].outputs[0].token_ids == ()
    assert tokens(llm.generate([[5] * 30], GREEDY)[0]) == greedy([5] * 30, 8)


def test_a_live_id_is_refused_and_a_used_one_is_free_again(llm, greedy) -> None:
    engine = llm.engine
    engine.add_request("x", IDS, GREEDY)
    with pytest.raises(InvalidRequestError, match=r"^request_id: 'x' is still running"):
        engine.add_request("x", [9], GREEDY)
    assert tokens(finish(engine)["x"]) == greedy(IDS, 8)
    engine.add_request("x", [9], GREEDY)
    assert tokens(finish(engine)["x"]) == greedy([9], 8)


def test_an_id_used_anew_after_an_abort_means_the_new_request(llm, greedy) -> None:
    engine = llm.engine
    for round_ in range(60):
        prompt = [2 + round_]
        engine.add_request("x", IDS, GREEDY.replace(max_tokens=64))
        for _ in range(round_ % 3):
            engine.step()
        engine.abort_request("x")
        engine.add_request("x", prompt, GREEDY)
        outputs = []
        while not (outputs and outputs[-1].finished):
            outputs += engine.step()
        assert all(o.prompt_token_ids == tuple(prompt) for o in outputs)
        assert tokens(outputs[-1]) == greedy(prompt, 8)
        engine.check_integrity()


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_adding_aborting_and_stepping(make_llm, greedy, seed: int) -> None:
    rng = random.Random(seed)
    llm = make_llm(block_size=2, num_blocks=24, max_model_len=30, max_num_seqs=3, max_num_batched_tokens=8)
    engine, live, last, aborted = llm.engine, [], {}, set()
    for i in range(120):
        roll = rng.random()
        if roll < 0.3:
            engine.add_request(f"r{i}", [2 + i % 50] * rng.randint(1, 9), GREEDY.replace(max_tokens=rng.randint(1, 12)))
            live.append(f"r{i}")
        elif roll < 0.4 and live:
            aborted.add(victim := live.pop(rng.randrange(len(live))))
            engine.abort_request(victim)
        for output in engine.step():
            last[output.request_id] = output
        engine.check_integrity()
    last |= finish(engine)
    for request_id, output in last.items():
        completion = output.outputs[0]
        wanted = greedy(list(output.prompt_token_ids), len(completion.token_ids))
        assert list(completion.token_ids) == wanted
        if request_id not in aborted:
            assert completion.finish_reason is FinishReason.LENGTH
    assert len(last) == len(live) + len(aborted)


class Faults:
    """Raises what it is told to in the executor's calls."""

    def __init__(self, llm, monkeypatch) -> None:
        runner = llm.engine.core._executor
        self.plan: dict[tuple[str, int], BaseException] = {}
        self.calls = {"launch": 0, "forward": 0, "collect": 0, "after_collect": 0}
        for target, name in ((runner, "launch"), (runner._model, "forward"), (runner, "collect")):
            monkeypatch.setattr(target, name, self._wrap(name, getattr(target, name)))

    def _wrap(self, name: str, call: Any) -> Any:
        def wrapped(*args: Any) -> Any:
            self._maybe(name)
            result = call(*args)
            if name == "collect":
                self._maybe("after_collect")
            return result

        return wrapped

    def _maybe(self, name: str) -> None:
        self.calls[name] += 1
        error = self.plan.pop((name, self.calls[name]), None)
        if error is not None:
            raise error


PLACES = ["launch", "forward", "collect", "after_collect"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_step_that_fails_ends_the_requests_in_it_and_no_others(
    make_llm, greedy, monkeypatch, caplog, where: str, at: int
) -> None:
    llm = make_llm(max_num_seqs=2, block_size=4)
    faults = Faults(llm, monkeypatch)
    faults.plan[where, at] = RuntimeError("the device is on fire")
    outputs = llm.generate([[i] for i in range(5, 10)], GREEDY)
    reasons = [o.outputs[0].finish_reason for o in outputs]
    assert reasons == [FinishReason.ERROR] * 2 + [FinishReason.LENGTH] * 3
    assert "the device is on fire" in outputs[0].outputs[0].error
    assert tokens(outputs[0]) == greedy([5], at - 1)
    assert "step" in caplog.text
    for i, output in enumerate(outputs[2:], start=7):
        assert tokens(output) == greedy([i], 8)
    for output, i in zip(llm.generate([[i] for i in range(5, 10)], GREEDY), range(5, 10), strict=True):
        assert tokens(output) == greedy([i], 8)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_inside_a_step_leaves_the_engine_as_good_as_new(
    make_llm, greedy, monkeypatch, assert_clean, where: str, at: int
) -> None:
    llm = make_llm(max_num_seqs=2, block_size=4)
    faults = Faults(llm, monkeypatch)
    faults.plan[where, at] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[i] for i in range(5, 10)], GREEDY)
    assert_clean(llm)
    for output, i in zip(llm.generate([[i] for i in range(5, 10)], GREEDY), range(5, 10), strict=True):
        assert tokens(output) == greedy([i], 8)


@pytest.mark.parametrize("where", PLACES)
def test_after_ctrl_c_in_a_program_of_ones_own_every_request_still_gets_its_last_output(
    make_llm, greedy, monkeypatch, where: str
) -> None:
    llm = make_llm(max_num_seqs=2, block_size=2, num_blocks=14, max_model_len=24)
    faults = Faults(llm, monkeypatch)
    for at in (2, 6, 9):
        faults.plan[where, at] = KeyboardInterrupt()
    engine, last, interrupts = llm.engine, {}, 0
    for i in range(8):
        engine.add_request(f"r{i}", [5 + i] * 4, GREEDY)
    engine.abort_request("r7")
    while engine.has_unfinished_requests():
        try:
            last |= {o.request_id: o for o in engine.step()}
        except KeyboardInterrupt:
            interrupts += 1
        engine.check_integrity()
    assert interrupts == 3
    assert len(last) == 8
    assert all(o.finished for o in last.values())
    reasons = [last[f"r{i}"].outputs[0].finish_reason for i in range(8)]
    assert reasons.count(FinishReason.ABORT) == 1
    assert 3 <= reasons.count(FinishReason.ERROR) <= 6
    assert tokens(llm.generate([IDS], GREEDY)[0]) == greedy(IDS, 8)


def test_an_interrupted_stream_can_be_left(make_llm, monkeypatch, assert_clean) -> None:
    llm = make_llm()
    faults = Faults(llm, monkeypatch)
    faults.plan["forward", 3] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        for _ in llm.stream(IDS, GREEDY):
            pass
    assert_clean(llm)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_fail_their_request_alone(make_llm, greedy, bad: float, temperature: float) -> None:
    def spoil(logits: torch.Tensor, history: list[int]) -> None:
        if history[0] == 5 and len(history) == 6:
            logits[3] = bad

    llm = make_llm(plugins=[ScriptedProcessor(spoil, always=True)])
    outputs = llm.generate([IDS, [9]], [GREEDY.replace(temperature=temperature), GREEDY])
    assert outputs[0].outputs[0].finish_reason is FinishReason.ERROR
    assert outputs[0].outputs[0].error == "the model's logits are not finite numbers"
    assert len(tokens(outputs[0])) == 2
    assert tokens(outputs[1]) == greedy([9], 8)


def test_restrictions_that_leave_nothing_fail_their_request_alone(llm, greedy) -> None:
    params = GREEDY.replace(allowed_token_ids=[1], stop_token_ids=[1], min_tokens=3)
    outputs = llm.generate([IDS, [9]], [params, GREEDY])
    assert outputs[0].outputs[0].error.startswith("no token is allowed")
    assert tokens(outputs[1]) == greedy([9], 8)


@pytest.mark.parametrize("dead_end", [float("nan"), -float("inf")])
@pytest.mark.parametrize("length", [4, 5, 7])
def test_drafts_do_not_change_where_a_request_fails(make_llm, greedy, dead_end: float, length: int) -> None:
    """Whether right drafts run into the dead end or wrong ones only look at it."""
    whole = IDS + greedy(IDS, 20)

    def spoil(logits: torch.Tensor, history: list[int]) -> None:
        if len(history) == length + 1 or history[-1] == 63:
            logits.fill_(dead_end)

    drafters = [
        lambda sequence, most: whole[sequence.num_tokens :],
        lambda sequence, most: [63] * most,
        lambda sequence, most: [*whole[sequence.num_tokens :][:1], 63, 63],
    ]
    results = []
    for drafter in (None, *drafters):
        plugins: list[Any] = [ScriptedProcessor(spoil, always=True)]
        if drafter is not None:
            plugins.append(ScriptedDrafter(drafter))
        llm = make_llm(plugins=plugins, drafter="scripted" if drafter else "none")
        results.append(llm.generate([IDS], GREEDY)[0].outputs[0])
    assert results[0].finish_reason is FinishReason.ERROR
    assert len(results[0].token_ids) == length - 3
    assert all(r == results[0] for r in results)


@pytest.mark.parametrize("drafts", [[-1], [64], [10**9], [5, -7, 5], torch.tensor([5, 99])], ids=str)
def test_drafts_outside_the_vocabulary_only_cost_time(make_llm, greedy, drafts: Any) -> None:
    llm = make_llm(plugins=[ScriptedDrafter(lambda history, most: drafts)], drafter="scripted")
    assert tokens(llm.generate([IDS], GREEDY)[0]) == greedy(IDS, 8)


def test_a_tokenizer_that_fails_ends_only_the_request_that_it_fails_on(llm, greedy, monkeypatch, caplog) -> None:
    tokenizer = llm.get_tokenizer()
    decode = tokenizer.decode
    poison = greedy(IDS, 4)[3]
    assert poison not in greedy([9], 8)

    def failing(token_ids, skip_special_tokens=True) -> str:
        if poison in list(token_ids):
            raise RuntimeError("no such glyph")
        return decode(token_ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", failing)
    bad, good = llm.generate([IDS, [9]], GREEDY)
    assert bad.outputs[0].finish_reason is FinishReason.ERROR
    assert "no such glyph" in bad.outputs[0].error
    assert tokens(good) == greedy([9], 8)


def test_a_request_that_the_executor_will_not_take_leaves_nothing(llm, monkeypatch, assert_clean, greedy) -> None:
    runner = llm.engine.core._executor
    attach = runner._processors.attach
    count = []

    def failing(sequence) -> None:
        count.append(sequence)
        if len(count) == 2:
            raise OSError("the pipe is broken")
        attach(sequence)

    monkeypatch.setattr(runner._processors, "attach", failing)
    with pytest.raises(OSError, match="pipe"):
        llm.engine.add_request("x", IDS, GREEDY.replace(n=3, temperature=1.0))
    assert_clean(llm)
    assert tokens(llm.generate([IDS], GREEDY)[0]) == greedy(IDS, 8)


def test_background_work_does_not_hold_others_up_and_its_failure_ends_its_request(make_llm, greedy) -> None:
    futures: dict[int, Future[Any]] = {}

    def on_attach(sequence) -> Any:
        if sequence.request.prompt_token_ids[0] != 5:
            return False
        return futures.setdefault(sequence.sequence_id, Future())

    llm = make_llm(plugins=[ScriptedProcessor(on_attach=on_attach, always=True)])
    engine = llm.engine
    for name in ("waits", "fails", "leaves"):
        engine.add_request(name, IDS, GREEDY)
    engine.add_request("free", [9], GREEDY)
    last = {}
    while "free" not in last or not last["free"].finished:
        last |= {o.request_id: o for o in engine.step()}
    assert set(last) == {"free"}
    waits, fails, _ = futures.values()
    engine.abort_request("leaves")
    fails.set_exception(InvalidRequestError("grammar", "does not parse"))
    waits.set_result(None)
    last |= finish(engine)
    assert last["fails"].outputs[0].error == "grammar: does not parse"
    assert last["leaves"].outputs[0].finish_reason is FinishReason.ABORT
    assert tokens(last["waits"]) == greedy(IDS, 8)


class Watcher(Observer):
    """A plugin with one observer, which may fail in one of its calls."""

    def __init__(self, fail_in: str = "") -> None:
        self.fail_in = fail_in
        self.calls: list[tuple[str, Any]] = []

    @hookimpl
    def octavo_make_observers(self, config) -> list[Any]:
        return [self]

    def _note(self, what: str, value: Any) -> None:
        self.calls.append((what, value))
        if what == self.fail_in:
            raise RuntimeError("cannot watch")

    def on_request(self, request) -> None:
        self._note("request", request.request_id)

    def on_step(self, stats) -> None:
        self._note("step", stats)

    def on_finished(self, output) -> None:
        self._note("finished", (output.request_id, output.outputs[0].finish_reason))


def test_observers_see_requests_steps_and_ends(make_llm) -> None:
    watcher = Watcher()
    llm = make_llm(plugins=[watcher], block_size=4)
    engine = llm.engine
    engine.add_request("a", IDS * 2, GREEDY)
    engine.add_request("b", [9], GREEDY)
    engine.step()
    engine.abort_request("b")
    finish(engine)
    engine.add_request("c", IDS * 2, GREEDY)
    finish(engine)
    seen = {what: [value for kind, value in watcher.calls if kind == what] for what in ("request", "step", "finished")}
    assert seen["request"] == ["a", "b", "c"]
    assert seen["finished"] == [("b", FinishReason.ABORT), ("a", FinishReason.LENGTH), ("c", FinishReason.LENGTH)]
    steps = seen["step"]
    assert sum(s.num_generated_tokens for s in steps) == 8 + 1 + 8
    assert [s.num_scheduled_tokens for s in steps][:2] == [9, 1]
    assert sum(s.prefix_queries for s in steps) == 8 + 1 + 8
    assert sum(s.prefix_hits for s in steps) == 4
    assert all(s.duration > 0 and s.num_preempted == s.num_draft_tokens == s.num_accepted_tokens == 0 for s in steps)
    assert all(s.num_used_blocks <= s.num_blocks for s in steps)
    assert [s.step_id for s in steps] == sorted({s.step_id for s in steps})


@pytest.mark.parametrize("where", ["request", "step", "finished"])
def test_an_observer_that_fails_is_dropped_and_no_request_suffers(make_llm, greedy, caplog, where: str) -> None:
    bad, good = Watcher(where), type("Other", (Watcher,), {})()
    llm = make_llm(plugins=[bad, good])
    for output in llm.generate([IDS, IDS], GREEDY):
        assert tokens(output) == greedy(IDS, 8)
    assert [what for what, _ in bad.calls].count(where) == 1
    assert [what for what, _ in bad.calls][-1] == where
    assert [what for what, _ in good.calls].count("finished") == 2
    assert caplog.text.count("is dropped") == 1


def test_an_observer_that_cannot_be_made_is_an_error_that_names_its_plugin(make_llm) -> None:
    class Broken:
        @hookimpl
        def octavo_make_observers(self, config) -> list[Any]:
            raise OSError("no port")

    with pytest.raises(PluginError, match=r"Broken.*no port"):
        make_llm(plugins=[Broken()])


def test_settings_that_cannot_work_are_refused_at_start(make_llm) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        make_llm(max_model_len=10**6)
    with pytest.raises(CapacityError, match=r"raise cache\.memory or cache\.num_blocks"):
        make_llm(max_model_len=100, num_blocks=3)
    short = make_llm(num_blocks=3)
    assert short.engine.max_model_len == 32
    with pytest.raises(InvalidRequestError, match=r"^prompt: .*KV cache holds 32 tokens; raise cache.memory"):
        short.generate([[5] * 40], GREEDY)


@pytest.mark.parametrize("size", [{"memory": "2MiB"}, {"memory_fraction": 0.0005}, {"num_blocks": 9}])
def test_the_log_says_how_many_tokens_fit(tiny_model, size: dict[str, Any]) -> None:
    """Two layers of keys and values, two heads of eight float32: 256 bytes a token."""
    llm = LLM(str(tiny_model()), dtype="float32", num_threads=1, **size)
    fits = int(re.match(r"(\d+) tokens fit", llm.engine.description["KV cache"])[1])
    if "num_blocks" in size:
        assert fits == 8 * 16
    else:
        assert fits % 16 == 0
        assert fits > 256
    assert fits == 2**21 // 256 - 16 or "memory" not in size
    assert llm.engine.description["length"].startswith(f"at most {min(fits, 256)} tokens a sequence")
    assert len(llm.generate("the", GREEDY)[0].outputs[0].token_ids) == 8


def test_a_drafter_that_cannot_let_go_harms_nobody(make_llm, greedy, caplog) -> None:
    class Clinging(ScriptedDrafter):
        def release(self, sequence_id: int) -> None:
            raise RuntimeError("mine")

    llm = make_llm(plugins=[Clinging(lambda sequence, most: [3])], drafter="scripted", max_num_seqs=1)
    for output in llm.generate([IDS, IDS], GREEDY):
        assert tokens(output) == greedy(IDS, 8)
    assert "failed to release" in caplog.text


def test_an_engine_that_cannot_be_built_shuts_its_executor_down(make_llm, monkeypatch) -> None:
    ended = []
    monkeypatch.setattr("octavo.executor.inproc.InProcessExecutor.shutdown", lambda self: ended.append(self))
    with pytest.raises(CapacityError):
        make_llm(max_model_len=100, num_blocks=3)
    assert len(ended) == 1


@pytest.mark.parametrize("error", [RuntimeError("lost"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
def test_what_ended_before_a_lost_plan_is_let_go_all_the_same(make_llm, monkeypatch, greedy, error) -> None:
    """The first request ends in step 3; the plan that would tell the runner so never reaches it."""
    llm = make_llm()
    faults = Faults(llm, monkeypatch)
    faults.plan["launch", 4] = error
    engine = llm.engine
    engine.add_request("short", [9], GREEDY.replace(max_tokens=3))
    engine.add_request("long", IDS, GREEDY)
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        with contextlib.suppress(KeyboardInterrupt):
            last |= {o.request_id: o for o in engine.step()}
    assert tokens(last["short"]) == greedy([9], 3)
    assert last["long"].outputs[0].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("nonsense", [None, "ab", [[5, float("nan")]], [[object()]], [[], []], 7])
def test_a_drafter_that_returns_nonsense_is_switched_off_and_no_request_suffers(nonsense: Any, caplog) -> None:
    drafter = ScriptedDrafter(lambda sequence, most: [])
    drafter.propose = lambda rows: nonsense  # type: ignore[method-assign]
    llm = table_llm(plugins=[drafter], drafter="scripted")
    plain = table_llm().generate([[5, 6]], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
    for _ in range(2):
        outputs = llm.generate([[5, 6]], SamplingParams(max_tokens=6, temperature=0, ignore_eos=True))
        assert outputs[0].outputs == plain[0].outputs
    assert sum("goes on without drafts" in r.message for r in caplog.records) == 1


def test_an_option_of_false_leaves_a_processor_out() -> None:
    processor = ScriptedProcessor(change=lambda logits, tokens: logits[: VOCAB_SIZE // 2].fill_(-torch.inf))
    llm = table_llm(plugins=[processor])
    greedy = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    off = llm.generate([[5, 6]], SamplingParams(**greedy, extra_args={"scripted": False}))[0].outputs[0]
    on = llm.generate([[5, 6]], SamplingParams(**greedy, extra_args={"scripted": True}))[0].outputs[0]
    assert off.token_ids == llm.generate([[5, 6]], SamplingParams(**greedy))[0].outputs[0].token_ids
    assert min(on.token_ids) >= VOCAB_SIZE // 2 > min(off.token_ids)


def test_a_factory_that_fails_names_its_plugin() -> None:
    class Nothing:
        @hookimpl
        def octavo_register_drafters(self) -> list[DrafterEntry]:
            return [DrafterEntry(name="nothing", factory=lambda target: None)]

        @hookimpl
        def octavo_register_executors(self) -> list[ExecutorEntry]:
            return [ExecutorEntry(name="crash", factory=lambda context: 1 / 0)]

    for keywords, message in (({"drafter": "nothing"}, "returned None"), ({"executor": "crash"}, "ZeroDivisionError")):
        with pytest.raises(PluginError, match=f"plugin Nothing .*{message}"):
            table_llm(plugins=[Nothing()], **keywords)
