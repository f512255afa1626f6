"""One span for each request, from its arrival to its end.

A span is made when its request ends: nothing has to be kept up while it runs, and what came of it is known. The SDK's
thread sends the spans in batches.
Owns: `RequestTracer`, its tracer provider, live requests. Must never know: the process's other tracing (no global
provider, no ambient context), HTTP.
"""

from __future__ import annotations

import atexit
import time

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo.request import Request, RequestOutput
from octavo.spec import Observer
from octavo_otel.attributes import as_utf8, failure_of, output_attributes, request_attributes
from octavo_otel.exporter import TraceExporter
from octavo_otel.plugin import OtelOptions

_W3C = TraceContextTextMapPropagator()


class RequestTracer(Observer):
    """Traces the requests of one engine.

    A request that fails ends its span with status ERROR; one that the client withdrew does not, for nothing went wrong
    here (as with a server's spans of RPC).
    """

    def __init__(self, options: OtelOptions, model: str | None) -> None:
        """`model` is its name in the spans; None leaves it out."""
        self._model = model
        self._exporter = TraceExporter(options.traces_url, options.headers, options.timeout)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(options.sample_ratio)),
            resource=_resource(options.service_name),
            shutdown_on_exit=False,  # live requests come first, see `shutdown`
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("octavo_otel")
        self._live: dict[str, tuple[Request, int]] = {}
        """Requests by id, each with its arrival in nanoseconds since 1970."""
        atexit.register(self.shutdown)

    def on_request(self, request: Request) -> None:
        waited = time.monotonic() - request.arrival_time
        self._live[request.request_id] = request, time.time_ns() - _nanoseconds(waited)

    def on_finished(self, output: RequestOutput) -> None:
        live = self._live.pop(output.request_id, None)
        if live is not None:
            self._trace(*live, output)

    def shutdown(self) -> None:
        """End the spans of live requests, send what is left, stop the SDK's thread.

        Waits for the collector's answer, but not for a collector that is known to be away. Other threads may still
        call `on_finished`. A second call does nothing.
        """
        atexit.unregister(self.shutdown)
        for request_id in list(self._live):
            live = self._live.pop(request_id, None)
            if live is not None:
                self._trace(*live, None)
        self._exporter.hurry()
        self._provider.shutdown()

    def _trace(self, request: Request, arrival: int, output: RequestOutput | None) -> None:
        """Make the span of a request that has ended; without `output`, the engine has."""
        elapsed = max(0.0, time.monotonic() - request.arrival_time)
        headers = request.trace_headers or {}
        span = self._tracer.start_span(
            "llm_request", _W3C.extract(headers, Context()), kind=SpanKind.SERVER, start_time=arrival
        )
        if span.is_recording():  # not drawn by the sampler otherwise
            attributes = request_attributes(request, self._model)
            attributes["gen_ai.latency.e2e"] = elapsed
            if output is not None:
                attributes |= output_attributes(output)
            if (failure := failure_of(output)) is not None:
                attributes["error.type"], description = failure
                span.set_status(Status(StatusCode.ERROR, description))
            span.set_attributes(attributes)
        span.end(arrival + _nanoseconds(elapsed))


def _resource(service_name: str) -> Resource:
    """The process as the environment describes it (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`), and its name."""
    detected = Resource.create()
    if not service_name and str(detected.attributes[SERVICE_NAME]).startswith("unknown_service"):
        service_name = "octavo"
    return detected.merge(Resource({SERVICE_NAME: as_utf8(service_name)})) if service_name else detected


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
