"""A collector on a local port, and requests without an engine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from octavo import SamplingParams
from octavo.request import Request


class Collector:
    """Takes OTLP over HTTP and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        """What it answers; spans that it refuses are not kept."""
        self.first_statuses: list[int] = []
        """What it answers before that, call by call."""
        self.calls: list[tuple[str, Mapping[str, str]]] = []
        """Path and headers of each call."""
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.calls.append((self.path, dict(self.headers.items())))
                status = collector.first_statuses.pop(0) if collector.first_statuses else collector.status
                if status == 200:
                    collector.bodies.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def resources(self) -> list[Any]:
        batches = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [resource for batch in batches for resource in batch.resource_spans]

    @property
    def spans(self) -> list[Any]:
        return [span for resource in self.resources for scope in resource.scope_spans for span in scope.spans]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between the tests and their collectors, no settings of OpenTelemetry from outside, one batch a test."""
    for name in os.environ:
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")


@pytest.fixture
def make_collector() -> Iterator[Callable[[], Collector]]:
    collectors: list[Collector] = []

    def make() -> Collector:
        collectors.append(Collector())
        return collectors[-1]

    yield make
    for collector in collectors:
        collector.close()


@pytest.fixture
def collector(make_collector: Callable[[], Collector]) -> Collector:
    return make_collector()


@pytest.fixture
def make_request() -> Callable[..., Request]:
    def make(request_id: str = "a", age: float = 0.0, **fields: Any) -> Request:
        """`age` is how many seconds ago it arrived."""
        defaults: dict[str, Any] = {
            "prompt_token_ids": (5, 6, 7),
            "sampling_params": SamplingParams(),
            "seed": 1,
            "eos_token_ids": frozenset({1}),
            "max_tokens": 16,
        }
        return Request(request_id=request_id, arrival_time=time.monotonic() - age, **(defaults | fields))

    return make
