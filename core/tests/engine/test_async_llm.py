"""Requests of many tasks at once: streams, aborts, slow readers, the engine's death."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.errors import EngineDeadError, InvalidRequestError, ModelLoadError
from octavo.request import FinishReason, RequestOutput
from octavo.spec import Observer
from octavo.testing import echo_model
from octavo.testing.echo_model import echo_config

LONG = "<say>" + "on and on " * 100 + "</say>"
PARAMS = SamplingParams(max_tokens=1000)
LASTING = SamplingParams(max_tokens=3000, ignore_eos=True)


class Watcher(Observer):
    def __init__(self) -> None:
        self.running: list[int] = []
        self.ends: list[FinishReason | None] = []
        self.num_first = self.num_gaps = 0
        self.calls: list[str] = []

    def on_step(self, stats) -> None:
        self.running.append(stats.num_running + stats.num_waiting)

    def on_tokens(self, times) -> None:
        self.num_first += len(times.time_to_first_token)
        self.num_gaps += len(times.inter_token_latency)
        assert all(seconds >= 0 for seconds in (*times.time_to_first_token, *times.inter_token_latency))

    def on_finished(self, output) -> None:
        self.ends.append(output.outputs[0].finish_reason)
        self.calls.append("finished")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def with_llm(test) -> Any:
    """Run an async test with an `AsyncLLM`, in either kind of place, and look for leftovers."""

    @pytest.mark.parametrize("in_process", [True, False], ids=["thread", "process"])
    def run(in_process: bool) -> None:
        async def main() -> None:
            watcher = Watcher()
            llm = await AsyncLLM.start(echo_config(), [echo_model], in_process=in_process)
            llm.observe(watcher)
            try:
                await test(llm, watcher)
                if llm.error is None:
                    assert llm.num_unfinished == llm.num_waiting == 0
                    snapshot = await llm.inspect()
                    assert snapshot.sequences == ()
                    assert all(state < 2 for group in snapshot.groups for state in group.states)
            finally:
                await llm.shutdown()
            await llm.shutdown()
            assert watcher.calls.count("shutdown") == 1
            assert not llm._news

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def say(llm: AsyncLLM, request_id: str, text: str, **changes: Any) -> str:
    request = await llm.make_request(request_id, f"<say>{text}</say>", PARAMS.replace(**changes))
    return await say_all(llm.stream(request))


async def say_all(outputs: AsyncIterator[RequestOutput]) -> str:
    return "".join([output.outputs[0].text async for output in outputs])


@with_llm
async def test_many_streams_get_each_its_own(llm: AsyncLLM, watcher: Watcher) -> None:
    texts = [f"this is answer number {i}, " * (i % 5 + 1) for i in range(40)]
    assert await asyncio.gather(*(say(llm, f"r{i}", text) for i, text in enumerate(texts))) == texts
    assert watcher.num_first == 40
    assert watcher.ends == [FinishReason.STOP] * 40


@with_llm
async def test_deltas_joined_are_the_whole(llm: AsyncLLM, watcher: Watcher) -> None:
    params = PARAMS.replace(n=2, logprobs=1, stop=["number two"])
    request = await llm.make_request("a", "<say>number one, number two</say>", params)
    deltas = [output async for output in llm.stream(request)]
    cumulative = [output async for output in llm.stream(request, cumulative=True)]
    whole = await llm.complete(request)
    assert cumulative[-1].outputs == whole.outputs
    for index in range(2):
        parts = [output.outputs[index] for output in deltas]
        assert "".join(p.text for p in parts) == whole.outputs[index].text == "number one, "
        assert tuple(t for p in parts for t in p.token_ids) == whole.outputs[index].token_ids
        assert tuple(t for p in parts for t in p.logprobs) == whole.outputs[index].logprobs


@with_llm
async def test_a_slow_reader_gets_more_at_once_and_loses_nothing(llm: AsyncLLM, watcher: Watcher) -> None:
    request = await llm.make_request("slow", LONG, LASTING)
    outputs = []
    async for output in llm.stream(request):
        outputs.append(output)
        if len(outputs) == 1:
            while llm.num_unfinished:
                await asyncio.sleep(0.001)
    assert len(outputs) == 2
    assert "".join(output.outputs[0].text for output in outputs).startswith("on and on " * 100)
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == LASTING.max_tokens


@with_llm
async def test_whoever_leaves_is_aborted(llm: AsyncLLM, watcher: Watcher) -> None:
    async with aclosing(llm.stream(await llm.make_request("a", LONG, LASTING))) as outputs:
        await anext(outputs)
    assert llm.num_unfinished == 0
    task = asyncio.create_task(llm.complete(await llm.make_request("b", LONG, LASTING)))
    await say(llm, "c", "short")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert llm.num_unfinished == 0
    async with asyncio.timeout(60):
        while watcher.running[-1]:
            await asyncio.sleep(0.001)
    assert sorted(watcher.ends) == [FinishReason.ABORT, FinishReason.ABORT, FinishReason.STOP]


@with_llm
async def test_an_id_is_free_as_soon_as_its_request_is_gone(llm: AsyncLLM, watcher: Watcher) -> None:
    for _ in range(30):
        async with aclosing(llm.stream(await llm.make_request("x", LONG, LASTING))) as outputs:
            await anext(outputs)
            with pytest.raises(InvalidRequestError, match="still running"):
                await llm.complete(await llm.make_request("x", "<say>a</say>", PARAMS))
    assert await say(llm, "x", "at last") == "at last"


@with_llm
async def test_bad_requests_are_refused_before_anything_runs(llm: AsyncLLM, watcher: Watcher) -> None:
    for prompt, params in (("", PARAMS), ([1, 10_000], PARAMS), ("x " * 9000, PARAMS), (5, PARAMS), ("x", 5)):
        with pytest.raises(InvalidRequestError):
            await llm.make_request("a", prompt, params)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^messages"):
        await llm.render_chat([{"role": "user"}])
    assert (await llm.render_chat([{"role": "user", "content": "hi"}]))["prompt"] == "hi"


@with_llm
async def test_what_was_made_of_a_request_is_looked_at_again(llm: AsyncLLM, watcher: Watcher) -> None:
    request = await llm.make_request("a", LONG, LASTING)
    too_long = request.prompt_token_ids * llm.max_model_len
    endless: list[object] = []
    endless.append(endless)
    unreadable = msgspec.Raw(b"\xc1"), msgspec.msgpack.Ext(-1, b"xyz"), 2**80, endless
    for field, changes in (
        ("prompt", [{"prompt_token_ids": ids} for ids in ((), (-1,), (10**9,), too_long)]),
        ("request", [{"prompt_token_ids": ids} for ids in (None, ("x",), (1.0,), (True,), frozenset({1}), [1])]),
        ("request", [{name: object()} for name in ("cache_salt", "adapter", "prompt", "trace_headers", "media")]),
        ("request", [{"eos_token_ids": [1]}, {"arrival_time": float("nan")}]),
        ("max_tokens", [{"max_tokens": 0}]),
        ("request", [{"request_id": 7}, {"arrival_time": "now"}, {"processors": object()}, {"cache_salt": "\ud800"}]),
        ("request", [{"sampling_params": params} for params in (None, {}, dataclasses.asdict(PARAMS))]),
        ("request", [{"sampling_params": PARAMS.replace(extra_args={"x": value})} for value in unreadable]),
        ("extra_args", [{"sampling_params": PARAMS.replace(extra_args={"x": object()})}]),
        ("logit_bias", [{"sampling_params": PARAMS.replace(logit_bias={10**9: 1.0})}]),
    ):
        for change in changes:
            with pytest.raises(InvalidRequestError, match=f"^{field}: "):
                await llm.complete(dataclasses.replace(request, **change))
    with pytest.raises(InvalidRequestError, match=r"^request: "):
        await llm.complete({"request_id": "a"})  # type: ignore[arg-type]
    shorter = dataclasses.replace(request, max_tokens=2)
    assert len((await llm.complete(shorter)).outputs[0].token_ids) == 2


@with_llm
async def test_a_tokenizer_that_fails_at_the_end_leaves_nothing_behind(llm: AsyncLLM, watcher: Watcher) -> None:
    def fail(*arguments: object, **keywords: object) -> str:
        raise RuntimeError("no text")

    streams = [llm.stream(await llm.make_request(name, LONG, LASTING)) for name in "abc"]
    for stream in streams:
        await anext(stream)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(llm.tokenizer), "decode", fail)
        for stream in streams:
            await stream.aclose()
    assert llm.num_unfinished == 0
    assert await say(llm, "a", "well again") == "well again"


@with_llm
async def test_text_to_tokens_and_back(llm: AsyncLLM, watcher: Watcher) -> None:
    for text in ("short, ünd", "long " * 1000):
        assert await llm.decode(await llm.encode(text)) == text
    with pytest.raises(InvalidRequestError):
        await llm.encode("\ud800")


@with_llm
async def test_whatever_runs_when_it_is_shut_down_is_told(llm: AsyncLLM, watcher: Watcher) -> None:
    task = asyncio.create_task(llm.complete(await llm.make_request("a", LONG, LASTING)))
    await asyncio.sleep(0)
    await llm.shutdown()
    with pytest.raises(EngineDeadError):
        await task
    with pytest.raises(EngineDeadError):
        await say(llm, "b", "too late")
    await llm.wait_ended()
    assert watcher.ends == [FinishReason.ERROR]
    assert watcher.calls[-1] == "shutdown"


def test_the_death_of_the_engine_reaches_everybody() -> None:
    async def main() -> None:
        llm = await AsyncLLM.start(echo_config(), [echo_model])
        stream = llm.stream(await llm.make_request("a", LONG, LASTING))
        await anext(stream)
        waiting = asyncio.create_task(llm.complete(await llm.make_request("b", LONG, LASTING)))
        await asyncio.sleep(0)
        llm._core._host.kill()
        async with asyncio.timeout(60):  # a bound on a hang
            await llm.wait_ended()
            with pytest.raises(EngineDeadError, match="exit code -9"):
                await say_all(stream)
            with pytest.raises(EngineDeadError):
                await waiting
        for call in (llm.inspect(), llm.reset_prefix_cache(), say(llm, "c", "x")):
            with pytest.raises(EngineDeadError):
                await call
        assert llm.error is not None
        assert llm.num_unfinished == 0
        await llm.shutdown()

    asyncio.run(main())


def test_what_keeps_a_model_from_loading_is_raised() -> None:
    with pytest.raises(ModelLoadError):
        asyncio.run(AsyncLLM.start(echo_config(model={"path": "/nowhere"}), [echo_model]))
