"""A collector that is away, refuses, or comes back: a line in the log, and no request suffers."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

import octavo_otel.plugin
from octavo import SamplingParams
from octavo.testing.table_model import table_llm
from octavo_otel.exporter import TraceExporter

PARAMS = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def spans() -> list[ReadableSpan]:
    made: Any = [TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("span") for _ in range(3)]
    for span in made:
        span.end()
    return made


def test_without_a_collector_requests_are_served_and_one_line_says_so(closed_port: int, caplog: Any) -> None:
    plain = table_llm().generate(["prompt", "other"], PARAMS, use_tqdm=False)
    options = {"otel": {"endpoint": f"http://127.0.0.1:{closed_port}", "timeout": 1.5}}
    llm = table_llm(plugins=[octavo_otel.plugin], options=options)
    [observer] = llm.engine._observers
    for _ in range(3):
        served = llm.generate(["prompt", "other"], PARAMS, use_tqdm=False)
        assert [o.outputs for o in served] == [o.outputs for o in plain]
    observer._provider.force_flush()
    llm.generate(["prompt"], PARAMS, use_tqdm=False)
    assert llm.engine._observers == [observer]
    llm.shutdown()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("octavo_otel.exporter", logging.WARNING)
    assert f"127.0.0.1:{closed_port}/v1/traces" in record.getMessage()
    assert "of 6 requests are lost" in record.getMessage()
    assert re.search(r": HTTPConnectionPool.*refused.*correct plugins\.otel\.endpoint", record.getMessage())
    assert "encountered" not in record.getMessage()


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_told_once_and_so_is_its_end(collector: Any, spans: Any, caplog: Any, status: int) -> None:
    exporter = TraceExporter(f"{collector.endpoint}/v1/traces", {}, 5.0)
    collector.status = status
    assert [exporter.export(spans) for _ in range(3)] == [SpanExportResult.FAILURE] * 3
    assert len(collector.calls) == 3
    [told] = caplog.messages
    assert str(status) in told
    collector.status = 200
    assert [exporter.export(spans) for _ in range(2)] == [SpanExportResult.SUCCESS] * 2
    assert len(collector.spans) == 6
    [_, again] = caplog.messages
    assert "takes spans again; 9 were lost" in again
    collector.status = status
    exporter.export(spans)
    assert len(caplog.messages) == 3
    exporter.shutdown()


def test_a_busy_collector_is_tried_again(collector: Any, spans: Any, caplog: Any) -> None:
    exporter = TraceExporter(f"{collector.endpoint}/v1/traces", {}, 30.0)
    collector.first_statuses = [503]  # try later
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert (len(collector.calls), len(collector.spans)) == (2, 3)
    assert not caplog.records
    exporter.shutdown()


def test_at_the_end_a_collector_that_is_away_is_not_waited_for(collector: Any, spans: Any) -> None:
    exporter = TraceExporter(f"{collector.endpoint}/v1/traces", {}, 60.0)
    collector.status = 404
    exporter.export(spans)
    exporter.hurry()
    collector.status = 503  # would be tried again for a minute
    exporter.export(spans)
    assert len(collector.calls) == 1
    exporter.shutdown()


def test_at_the_end_one_that_was_never_asked_is_asked_once(collector: Any, spans: Any) -> None:
    exporter = TraceExporter(f"{collector.endpoint}/v1/traces", {}, 60.0)
    exporter.hurry()
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    collector.status = 404
    for _ in range(3):
        assert exporter.export(spans) is SpanExportResult.FAILURE
    assert len(collector.calls) == 2
    exporter.shutdown()


def test_the_log_of_other_exporters_is_theirs(collector: Any, spans: Any, caplog: Any) -> None:
    ours = TraceExporter(f"{collector.endpoint}/v1/traces", {}, 5.0)
    others = OTLPSpanExporter(endpoint=f"{collector.endpoint}/v1/traces", timeout=5)
    collector.status = 404
    ours.export(spans)
    others.export(spans)
    assert [record.name for record in caplog.records] == ["octavo_otel.exporter", OTLPSpanExporter.__module__]
    ours.shutdown()
    others.shutdown()
