"""What arrives at a collector for the requests of an engine, and for requests as a server would make them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import aclosing
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusRecord
from opentelemetry.sdk.trace import TracerProvider

import octavo.testing.echo_model
import octavo_otel.plugin
from octavo import AsyncLLM, SamplingParams
from octavo.request import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from octavo.testing.echo_model import echo_config
from octavo.testing.scripted import ScriptedProcessor
from octavo.testing.table_model import table_llm
from octavo_otel.plugin import OtelOptions
from octavo_otel.tracer import RequestTracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def otel_llm(collector: Any, *, plugins: Any = (), **options: Any) -> Any:
    given = {"otel": {"endpoint": collector.endpoint, **options}}
    return table_llm(plugins=[octavo_otel.plugin, *plugins], options=given)


def attributes(span: Any) -> dict[str, Any]:
    """Attributes of a span or a resource, as Python values."""

    def plain(value: Any) -> Any:
        chosen = getattr(value, value.WhichOneof("value"))
        return [plain(one) for one in chosen.values] if value.HasField("array_value") else chosen

    return {pair.key: plain(pair.value) for pair in span.attributes}


def tracer(collector: Any, **options: Any) -> RequestTracer:
    return RequestTracer(OtelOptions(endpoint=collector.endpoint, **options), "model")


def output(request_id: str = "a", *completions: CompletionOutput) -> RequestOutput:
    stopped = CompletionOutput(index=0, text="x", token_ids=(2, 1), finish_reason=FinishReason.STOP)
    return RequestOutput(
        request_id=request_id, prompt=None, prompt_token_ids=(5, 6, 7), outputs=completions or (stopped,), finished=True
    )


def trace_one(observer: RequestTracer, request: Any) -> None:
    observer.on_request(request)
    observer.on_finished(output(request.request_id))


def test_each_request_of_a_run_is_a_span_with_its_numbers(collector: Any) -> None:
    llm = otel_llm(collector, headers={"authorization": "Bearer secret"}, model_name="the-model")
    params = [
        SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=12, seed=7, n=2, max_tokens=4, presence_penalty=0.5),
    ]
    before = time.time_ns()
    outputs = llm.generate(["prompt" * 12, "other"], params, use_tqdm=False)
    llm.shutdown()
    after = time.time_ns()

    assert {path for path, _ in collector.calls} == {"/v1/traces"}
    assert {headers["authorization"] for _, headers in collector.calls} == {"Bearer secret"}
    assert attributes(collector.resources[0].resource)["service.name"] == "octavo"
    spans = {attributes(span)["gen_ai.request.id"]: span for span in collector.spans}
    assert len(collector.spans) == len(spans) == 2
    for result, asked in zip(outputs, params, strict=True):
        span = spans[result.request_id]
        given, metrics = attributes(span), result.metrics
        assert (span.name, span.kind, span.parent_span_id) == ("llm_request", SpanRecord.SPAN_KIND_SERVER, b"")
        assert span.status.code == StatusRecord.STATUS_CODE_UNSET
        assert given["gen_ai.system"] == given["gen_ai.provider.name"] == "octavo"
        assert given["gen_ai.request.model"] == given["gen_ai.response.model"] == "the-model"
        assert given["gen_ai.request.temperature"] == asked.temperature
        assert given["gen_ai.request.top_p"] == asked.top_p
        assert given["gen_ai.request.max_tokens"] == asked.max_tokens
        assert given["gen_ai.usage.input_tokens"] == len(result.prompt_token_ids)
        assert given["gen_ai.usage.output_tokens"] == sum(len(c.token_ids) for c in result.outputs)
        assert given["gen_ai.response.finish_reasons"] == [c.finish_reason for c in result.outputs]
        assert given["gen_ai.latency.time_in_queue"] == metrics.queue_time
        assert given["gen_ai.latency.time_to_first_token"] == metrics.time_to_first_token
        assert given["gen_ai.latency.time_in_model_prefill"] == metrics.prefill_time
        assert given["gen_ai.latency.time_in_model_decode"] == metrics.decode_time
        assert given["gen_ai.latency.time_in_model_inference"] == metrics.prefill_time + metrics.decode_time
        assert metrics.time_to_first_token + metrics.decode_time <= given["gen_ai.latency.e2e"]
        assert span.end_time_unix_nano - span.start_time_unix_nano == round(given["gen_ai.latency.e2e"] * 1e9)
        assert before - 10**6 <= span.start_time_unix_nano <= span.end_time_unix_nano <= after + 10**6
    plain, other = (attributes(spans[result.request_id]) for result in outputs)
    assert plain["gen_ai.usage.output_tokens"] == 9
    optional = {
        "gen_ai.request.top_k": 12.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.presence_penalty": 0.5,
    }
    assert {name: other[name] for name in optional} == optional
    assert not optional.keys() & plain.keys()
    assert len(other["gen_ai.response.finish_reasons"]) == 2


def test_a_prefix_hit_is_told(collector: Any) -> None:
    llm = otel_llm(collector)
    params = SamplingParams(temperature=0, max_tokens=2)
    for _ in range(2):
        [result] = llm.generate(["prompt" * 12], params, use_tqdm=False)
    llm.shutdown()
    cached = [attributes(span)["gen_ai.usage.cache_read.input_tokens"] for span in collector.spans]
    assert sorted(cached) == [0, result.metrics.num_cached_tokens]
    assert result.metrics.num_cached_tokens > 0


def test_no_text_of_anybody_is_sent(collector: Any) -> None:
    llm = otel_llm(collector)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=["STOPWORD"])
    [result] = llm.generate(["TOPSECRET"], params, use_tqdm=False)
    llm.shutdown()
    [body] = collector.bodies
    assert len(result.outputs[0].text) > 20
    for text in (result.outputs[0].text, "TOPSECRET", "STOPWORD"):
        assert text.encode() not in body
        assert text.encode()[:8] not in body


def test_a_span_starts_when_its_request_arrived(collector: Any, make_request: Any) -> None:
    observer = tracer(collector)
    before = time.time_ns()
    trace_one(observer, make_request(age=5.0))
    after = time.time_ns()
    observer.shutdown()
    [span] = collector.spans
    assert before - 5_001_000_000 <= span.start_time_unix_nano <= after - 4_999_000_000
    assert 5_000_000_000 <= span.end_time_unix_nano - span.start_time_unix_nano <= after - before + 5_001_000_000


def test_a_withdrawn_request_ends_its_span_without_an_error(collector: Any) -> None:
    llm = otel_llm(collector)
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    engine.add_request("ran", "prompt", params)
    for _ in range(3):
        [shown] = engine.step()
    engine.add_request("waited", "prompt", params)
    engine.abort_request("waited")
    engine.abort_request("ran")
    assert engine.add_request("ran", "again", params.replace(max_tokens=1)) is None  # an id may be used anew
    while engine.has_unfinished_requests():
        engine.step()
    llm.shutdown()
    waited, ran, again = collector.spans
    for span in (waited, ran):
        assert span.status.code == StatusRecord.STATUS_CODE_UNSET
        assert attributes(span)["gen_ai.response.finish_reasons"] == ["abort"]
        assert "error.type" not in attributes(span)
    assert attributes(ran)["gen_ai.usage.output_tokens"] == len(shown.outputs[0].token_ids) > 0
    assert attributes(waited)["gen_ai.usage.output_tokens"] == 0
    assert {name for name in attributes(waited) if "latency" in name} == {"gen_ai.latency.e2e"}
    assert attributes(again)["gen_ai.request.id"] == "ran"
    assert attributes(again)["gen_ai.response.finish_reasons"] == ["length"]
    assert len({span.trace_id for span in collector.spans}) == 3


def test_a_failed_request_ends_its_span_with_an_error(collector: Any) -> None:
    def attach(sequence: Any) -> bool:
        if sequence.num_tokens == 3:
            raise RuntimeError("three is too few")
        return True

    llm = otel_llm(collector, plugins=[ScriptedProcessor(on_attach=attach, always=True)])
    bad, good = llm.generate(["abc", "abcd"], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    llm.shutdown()
    spans = {attributes(span)["gen_ai.request.id"]: span for span in collector.spans}
    failed, served = spans[bad.request_id], spans[good.request_id]
    assert bad.outputs[0].finish_reason is FinishReason.ERROR
    assert failed.status.code == StatusRecord.STATUS_CODE_ERROR
    assert failed.status.message == bad.outputs[0].error
    assert "too few" in failed.status.message
    assert attributes(failed)["error.type"] == "server_error"
    assert attributes(failed)["gen_ai.response.finish_reasons"] == ["error"]
    assert served.status.code == StatusRecord.STATUS_CODE_UNSET


@pytest.mark.parametrize(("field", "kind"), [(None, "server_error"), ("stop", "invalid_request_error")])
def test_one_failed_completion_of_several_fails_the_span(
    collector: Any, make_request: Any, field: str | None, kind: str
) -> None:
    observer = tracer(collector)
    observer.on_request(make_request())
    good = CompletionOutput(index=0, text="", token_ids=(2,), finish_reason=FinishReason.LENGTH)
    bad = CompletionOutput(
        index=1, text="", token_ids=(), finish_reason=FinishReason.ERROR, error="lost \ud800", error_field=field
    )
    observer.on_finished(output("a", good, bad))
    observer.shutdown()
    [span] = collector.spans
    assert (span.status.code, span.status.message) == (StatusRecord.STATUS_CODE_ERROR, "lost ?")
    assert attributes(span)["gen_ai.response.finish_reasons"] == ["length", "error"]
    assert attributes(span)["error.type"] == kind


def test_requests_that_the_engine_leaves_behind_are_errors(collector: Any) -> None:
    llm = otel_llm(collector)
    llm.engine.add_request("a", "prompt", SamplingParams(max_tokens=50))
    llm.engine.step()
    llm.shutdown()
    [span] = collector.spans
    assert span.status.code == StatusRecord.STATUS_CODE_ERROR
    assert span.status.message == "the engine was shut down"
    assert attributes(span)["error.type"] == "server_error"


def test_requests_that_run_when_the_program_ends_are_errors(collector: Any, make_request: Any) -> None:
    observer = tracer(collector)
    observer.on_request(make_request())
    observer.shutdown()
    observer.shutdown()
    [span] = collector.spans
    assert span.status.code == StatusRecord.STATUS_CODE_ERROR
    assert "stopped before the request" in span.status.message
    assert attributes(span)["error.type"] == "engine_stopped"


@pytest.mark.parametrize("headers", [{"traceparent": PARENT}, {"traceparent": PARENT, "tracestate": "a=1,b=2"}])
def test_a_clients_trace_goes_on(collector: Any, make_request: Any, headers: dict[str, str]) -> None:
    observer = tracer(collector, sample_ratio=0.0)  # the client has decided
    trace_one(observer, make_request(trace_headers=headers))
    trace_one(observer, make_request(trace_headers={"traceparent": PARENT.removesuffix("1") + "0"}))
    observer.shutdown()
    [span] = collector.spans
    assert span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent_span_id.hex() == "b7ad6b7169203331"
    assert span.trace_state == headers.get("tracestate", "")


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"traceparent": ""},
        {"traceparent": "nonsense"},
        {"traceparent": PARENT.upper()},
        {"traceparent": f"{PARENT}-more"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {"traceparent": "\ud800\x00é" * 50},
        {"tracestate": "=,=,=;"},
    ],
)
def test_without_a_clients_trace_a_request_begins_one(collector: Any, make_request: Any, headers: Any) -> None:
    observer = tracer(collector)
    trace_one(observer, make_request(trace_headers=headers))
    observer.shutdown()
    [span] = collector.spans
    assert span.parent_span_id == b""
    assert any(span.trace_id)


def test_a_span_of_the_programs_own_is_no_parent(collector: Any, make_request: Any) -> None:
    observer, ours = tracer(collector), TracerProvider(shutdown_on_exit=False)
    with ours.get_tracer("program").start_as_current_span("own"):
        trace_one(observer, make_request())
    observer.shutdown()
    assert collector.spans[0].parent_span_id == b""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider), "the process's provider was set"


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_a_part_of_the_requests_is_traced(collector: Any, make_request: Any, ratio: float) -> None:
    observer = tracer(collector, sample_ratio=ratio)
    for i in range(400):
        trace_one(observer, make_request(f"request {i}"))
    observer.shutdown()
    assert 400 * ratio / 2 <= len(collector.spans) <= 400 * ratio * 1.5  # 6 standard deviations
    assert bool(collector.calls) == bool(ratio)


def test_what_otlp_cannot_carry_loses_no_span(collector: Any, make_request: Any, caplog: Any) -> None:
    observer = tracer(collector)
    trace_one(observer, make_request("\ud800", sampling_params=SamplingParams(seed=2**64 - 1)))
    trace_one(observer, make_request("good", sampling_params=SamplingParams(seed=-(2**63))))
    observer.shutdown()
    first, second = (attributes(span) for span in collector.spans)
    assert first["gen_ai.request.id"] == "?"
    assert "gen_ai.request.seed" not in first
    assert second["gen_ai.request.seed"] == -(2**63)
    assert not caplog.records


def test_ends_without_a_beginning_are_ignored(collector: Any) -> None:
    observer = tracer(collector)
    observer.on_finished(output("never seen"))
    observer.shutdown()
    assert not collector.calls


def test_metrics_that_are_unknown_are_left_out(collector: Any, make_request: Any) -> None:
    observer = tracer(collector)
    observer.on_request(make_request())
    result = output()
    assert result.metrics == RequestMetrics()
    observer.on_finished(result)
    observer.shutdown()
    assert {name for name in attributes(collector.spans[0]) if "latency" in name} == {"gen_ai.latency.e2e"}


def test_streams_of_a_server_are_spans_with_all_their_tokens(collector: Any) -> None:
    async def serve() -> None:
        config = echo_config(plugins={"otel": {"endpoint": collector.endpoint}})
        llm = await AsyncLLM.start(config, [octavo.testing.echo_model, octavo_otel.plugin], in_process=True)
        whole = await llm.make_request("whole", "<say>hello</say>", SamplingParams(max_tokens=50))
        assert "".join([o.outputs[0].text async for o in llm.stream(whole)]) == "hello"
        left = await llm.make_request("left", "<say>hello</say>", SamplingParams(max_tokens=4000, ignore_eos=True))
        async with aclosing(llm.stream(left)) as outputs:
            await anext(outputs)
        await llm.shutdown()

    asyncio.run(serve())
    whole, left = (attributes(span) for span in collector.spans)
    assert whole["gen_ai.usage.output_tokens"] == len("hello") + 1
    assert whole["gen_ai.response.finish_reasons"] == ["stop"]
    assert left["gen_ai.usage.output_tokens"] >= 1
    assert left["gen_ai.response.finish_reasons"] == ["abort"]


def test_two_engines_in_one_process_have_their_own_tracing(make_collector: Any) -> None:
    collectors = [make_collector(), make_collector()]
    llms = [otel_llm(c, service_name=name) for c, name in zip(collectors, ("first", "second"), strict=True)]
    for llm, num_requests in zip(llms, (1, 3), strict=True):
        llm.generate(["prompt"] * num_requests, SamplingParams(max_tokens=2), use_tqdm=False)
    for llm in llms:
        llm.shutdown()
    assert [len(c.spans) for c in collectors] == [1, 3]
    assert [attributes(c.resources[0].resource)["service.name"] for c in collectors] == ["first", "second"]


@pytest.mark.parametrize("variable", ["OTEL_SERVICE_NAME=mine", "OTEL_RESOURCE_ATTRIBUTES=service.name=mine"])
def test_the_environment_may_name_the_service(
    collector: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    for options in ({}, {"service_name": "configured"}):
        observer = tracer(collector, **options)
        trace_one(observer, make_request())
        observer.shutdown()
    assert [attributes(r.resource)["service.name"] for r in collector.resources] == ["mine", "configured"]


def test_a_program_that_just_ends_has_sent_its_spans(collector: Any) -> None:
    program = f"""
import octavo.testing.echo_model
import octavo_otel.plugin
from octavo import AsyncLLM, SamplingParams
from octavo.testing.table_model import table_llm

llm = table_llm(plugins=[octavo_otel.plugin], options={{"otel": {{"endpoint": "{collector.endpoint}"}}}})
llm.generate(["prompt"] * 3, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
llm.engine.add_request("left behind", "prompt")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    statuses = [(attributes(s)["gen_ai.request.id"], s.status.code) for s in collector.spans]
    assert statuses == [*((f"llm-{i}", 0) for i in range(3)), ("left behind", StatusRecord.STATUS_CODE_ERROR)]
