"""The engine core elsewhere: outputs as here, errors that cross over, and neither survives the other by long."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.engine import wire
from octavo.engine.build import build_engine
from octavo.engine.engine import LLMEngine
from octavo.engine.remote import RemoteCore, start_process, start_thread
from octavo.errors import CapacityError, ConfigError, EngineDeadError, InvalidRequestError, ModelLoadError
from octavo.plugins import load_extensions
from octavo.request import FinishReason, MediaSpan, Request, RequestOutput, TokenLogprobs
from octavo.snapshot import EngineSnapshot
from octavo.step import SequenceUpdate, StepReport, StepStats
from octavo.testing import echo_model
from octavo.testing.echo_model import echo_config

PARAMS = SamplingParams(max_tokens=64)
LONG = "<say>" + "on and on " * 100 + "</say>"
LASTING = SamplingParams(max_tokens=3000, ignore_eos=True)
shared_processes: list[psutil.Process] = []
"""Of engines that several tests use."""


@pytest.fixture(scope="module", params=[start_process, start_thread], ids=["process", "thread"])
def remote(request) -> Iterator[LLMEngine]:
    config = echo_config()
    extensions = load_extensions(config, plugins=[echo_model])
    engine = build_engine(config, extensions, request.param(config, extensions, [echo_model]))
    shared_processes.extend(engine_processes())
    yield engine
    engine.check_integrity()
    engine.shutdown()


def run(engine: LLMEngine, prompts: dict[str, str], params: SamplingParams = PARAMS) -> dict[str, RequestOutput]:
    for request_id, prompt in prompts.items():
        engine.add_request(request_id, prompt, params)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


def timeless(output: RequestOutput) -> RequestOutput:
    """Without the times, which differ, and what earlier requests left in the cache."""
    return dataclasses.replace(output, metrics=dataclasses.replace(type(output.metrics)()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": 3, "seed": 5, "temperature": 30.0},
        {"logprobs": 3, "prompt_logprobs": 2},
        {"stop": ["lo w"]},
        {"stop_token_ids": [81], "include_stop_str_in_output": True},
        {"logit_bias": {70: -100.0}, "bad_words": ["wor"], "min_tokens": 3},
        {"allowed_token_ids": list(range(4, 90)), "ignore_eos": True, "max_tokens": 9},
        {"extra_args": {"min_tokens": {"a": [1, 2.5, None, "x"]}}, "priority": -3},
    ],
    ids=str,
)
def test_every_option_crosses_over(remote: LLMEngine, changes) -> None:
    prompts = {"a": "x <say>hello world</say>", "b": "<say>wörld 🎉</say>"}
    params = SamplingParams(**{"max_tokens": 64, "seed": 1, **changes})
    with LLM.from_config(echo_config(), [echo_model]) as here:
        expected = run(here.engine, prompts, params)
    found = run(remote, prompts, params)
    assert {k: timeless(v) for k, v in found.items()} == {k: timeless(v) for k, v in expected.items()}
    assert all(output.metrics.time_to_first_token > 0 for output in found.values())


def test_a_request_that_is_aborted_leaves_nothing(remote: LLMEngine) -> None:
    remote.add_request("a", LONG, LASTING)
    remote.step()
    assert [s.request_id for s in remote.core.inspect().sequences] == ["a"]
    assert remote.abort_request("a")
    assert not remote.abort_request("a")
    snapshot = remote.core.inspect()
    assert snapshot.sequences == ()
    assert not any(state > 1 for group in snapshot.groups for state in group.states)
    (last,) = [output for output in remote.step() if output.finished]
    assert last.outputs[0].finish_reason is FinishReason.ABORT


def test_a_request_that_cannot_be_sent_is_refused_and_the_others_go_on(remote: LLMEngine) -> None:
    remote.add_request("a", LONG, LASTING)
    with pytest.raises(InvalidRequestError, match=r"^extra_args: must be plain"):
        remote.add_request("b", "x", SamplingParams(extra_args={"min_tokens": object()}))
    assert not remote._outputs._requests.keys() - {"a"}
    remote.abort_request("a")
    remote.step()


def test_the_snapshot_shows_sequences_and_blocks(remote: LLMEngine) -> None:
    remote.reset_prefix_cache()
    remote.add_request("twice", LONG, LASTING.replace(n=2))
    while not remote.step():  # a report of what an earlier test aborted may come first
        pass
    snapshot = remote.core.inspect()
    assert [(s.request_id, s.num_prompt_tokens) for s in snapshot.sequences] == [("twice", 702)] * 2
    (group,) = snapshot.groups
    assert len(group.states) == 2047
    assert sum(state >= 2 for state in group.states) >= sum(s.num_blocks for s in snapshot.sequences[:1])
    remote.abort_request("twice", want_output=False)
    assert remote.core.inspect().groups[0].states.count(1) > 0


def test_what_is_said_of_sequences_is_what_was_told() -> None:
    logprobs = (TokenLogprobs(3, -0.5, 1, ((3, -0.5), (4, -1.5))),)
    update = SequenceUpdate(7, (3,), logprobs, ((1, logprobs[0]),), FinishReason.STOP, 9, "x", 1.5, 2, 3, "prompt")
    report = StepReport((update,), StepStats(1, 0.5, 1, 1, 1, 0, 0, 0, 0, 1, 2, 3, 4))
    for message in (wire.Stepped(report), wire.Snapshot(EngineSnapshot((), ()))):
        assert wire.FROM_CORE.decode(wire.encode(message)) == message
    request = Request(
        request_id="r",
        prompt_token_ids=(1, 2),
        sampling_params=SamplingParams(
            structured_outputs=StructuredOutputsParams(json={"type": "object"}), seed=2**64 - 1
        ),
        seed=2**64 - 1,
        eos_token_ids=frozenset({1}),
        max_tokens=3,
        arrival_time=1.0,
        prompt="\ud7ff\x00",
        cache_salt="s",
        media=(MediaSpan(0, 1, "h"),),
    )
    assert wire.TO_CORE.decode(wire.encode(wire.Add(request, (1, 2)))) == wire.Add(request, (1, 2))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_model_len": 100_000}, ConfigError),
        ({"num_blocks": 2, "max_model_len": 512}, CapacityError),
        ({"model": {"path": "/nowhere/at/all"}}, ModelLoadError),
    ],
)
def test_what_keeps_a_core_from_being_built_is_raised_here(changes, error) -> None:
    config = echo_config(**changes)
    with pytest.raises(error):
        LLM.from_config(config, [echo_model], in_process=False)
    assert not engine_processes()


def test_a_plugin_that_the_process_cannot_import_is_an_error_that_says_what_to_do() -> None:
    for plugin in (object(), types.ModuleType("__main__")):
        extensions = load_extensions(echo_config(), plugins=[echo_model])
        with pytest.raises(ConfigError, match=r"cannot import .*module of its own"):
            start_process(echo_config(), extensions, [plugin])


def test_a_module_that_only_this_process_finds_is_found_there_too(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_queue_plugin.py").write_text(
        "from octavo.hookspecs import hookimpl\nfrom octavo.scheduler import FCFSQueue\n"
        "@hookimpl\ndef octavo_make_queue(policy):\n    return FCFSQueue() if policy == 'mine' else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_queue_plugin  # ty: ignore

    config = echo_config(scheduler={"policy": "mine"})
    with LLM.from_config(config, [echo_model, my_queue_plugin], in_process=False) as llm:
        assert llm.generate("<say>yes</say>")[0].outputs[0].text == "yes"


def engine_processes() -> list[psutil.Process]:
    """Those of engines that only one test uses."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "octavo.engine.process" in " ".join(child.cmdline()) and child not in shared_processes:
                found.append(child)
    return found


def test_a_killed_core_is_noticed_and_says_so() -> None:
    llm = LLM.from_config(echo_config(), [echo_model], in_process=False)
    stream = llm.stream(LONG, LASTING)
    next(stream)
    (process,) = engine_processes()
    process.kill()
    with pytest.raises(EngineDeadError, match="exit code -9"):
        list(stream)
    with pytest.raises(EngineDeadError):
        llm.generate("<say>more</say>")
    llm.shutdown()
    llm.shutdown()


def test_signals_of_the_group_leave_it_to_the_parent() -> None:
    with LLM.from_config(echo_config(), [echo_model], in_process=False) as llm:
        (process,) = engine_processes()
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        assert llm.generate("<say>still here</say>")[0].outputs[0].text == "still here"
    process.wait(5)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_killed_parent_takes_its_core_along(tmp_path: Path, busy: bool) -> None:
    script = (
        "import octavo.testing.echo_model as m, sys, psutil\n"
        "from octavo import LLM, SamplingParams\n"
        "llm = LLM.from_config(m.echo_config(), [m], in_process=False)\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        f"if {busy}: llm.generate('<say>a</say>', SamplingParams(max_tokens=4000, ignore_eos=True))\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    core = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    core_ends_within(core, seconds=2.0)
    parent.communicate()
    assert not list(tmp_path.glob("octavo-*/engine")), "a socket is left over"


def core_ends_within(core: psutil.Process, seconds: float) -> None:
    for _ in range(round(seconds / 0.01)):  # so often, not so long: a busy machine takes longer
        with contextlib.suppress(psutil.NoSuchProcess):
            if core.is_running() and core.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
                continue
        return
    raise AssertionError("the core outlives its parent")


def test_an_engine_that_is_shut_down_while_it_works_ends() -> None:
    llm = LLM.from_config(echo_config(), [echo_model], in_process=False)
    next(llm.stream(LONG, LASTING))
    (process,) = engine_processes()
    llm.shutdown()
    assert not process.is_running()
    with pytest.raises(EngineDeadError):
        llm.generate("x")


def test_an_idle_core_sleeps(idle_seconds: Callable[[psutil.Process, float], float]) -> None:
    with LLM.from_config(echo_config(), [echo_model], in_process=False) as llm:
        llm.generate("<say>warm</say>")
        (process,) = engine_processes()
        # at first it may have something to do
        assert any(idle_seconds(process, 1.0) < 0.02 for _ in range(5))


@pytest.fixture
def idle_seconds() -> Callable[[psutil.Process, float], float]:
    """CPU seconds that a process uses in a while."""

    def measure(process: psutil.Process, seconds: float) -> float:
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        return after.user + after.system - before.user - before.system

    return measure


def test_the_remote_core_is_an_engine_client(remote: LLMEngine) -> None:
    assert isinstance(remote.core, RemoteCore)
    assert remote.core.facts.max_model_len == remote.max_model_len
    assert "KV cache" in remote.description
