"""Sends batches of spans to the collector, and says it in one line when that begins to fail.

The SDK's exporter retries, but tells each attempt to its log: four lines for every batch while the collector is away.
Owns: `TraceExporter`, and what is logged about sending. Must never know: requests, what a span says.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)


class _SDKLines(logging.Filter):
    """Takes what the SDK's exporter logs on a thread while that thread captures; other users of it keep their log."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        lines: list[str] | None = getattr(self._thread, "lines", None)
        if lines is None:
            return True
        lines.append(record.getMessage())
        return False

    @contextmanager
    def captured(self) -> Generator[list[str]]:
        self._thread.lines = lines = []
        try:
            yield lines
        finally:
            self._thread.lines = None


_sdk_lines = _SDKLines()
logging.getLogger(OTLPSpanExporter.__module__).addFilter(_sdk_lines)


class TraceExporter(SpanExporter):
    """Implements the SDK's `SpanExporter` by `OTLPSpanExporter`. A batch that cannot be sent is lost."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self._url = url
        self._sender = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=timeout)
        self._num_lost = 0
        """Spans that could not be sent since it last worked."""
        self._hurried = self._closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Called on the SDK's thread. Takes at most the timeout."""
        if self._hurried and self._num_lost:
            self._num_lost += len(spans)
            return SpanExportResult.FAILURE
        with _sdk_lines.captured() as lines:
            try:
                result = self._sender.export(spans)
            except Exception as error:  # older releases let connection errors out, and the SDK would log each of them
                result = SpanExportResult.FAILURE
                lines.insert(0, str(error))
        if result is not SpanExportResult.SUCCESS:
            self._lose(len(spans), lines)
        elif self._num_lost:
            logger.warning("%s takes spans again; %d were lost", self._url, self._num_lost)
            self._num_lost = 0
        return result

    def hurry(self) -> None:
        """The engine ends: give up at the first batch that cannot be sent, and at once where the last one could not."""
        self._hurried = True
        if self._num_lost:
            self.shutdown()

    def shutdown(self) -> None:
        """Send no more; a retry that waits gives up."""
        if not self._closed:
            self._closed = True
            self._sender.shutdown()

    def _lose(self, num_spans: int, lines: Sequence[str]) -> None:
        if not self._num_lost:
            logger.warning(
                "the spans of %d requests are lost, for %s does not take them: %s. Requests are served all the same. "
                "Start the collector or correct plugins.otel.endpoint; while that is empty, nothing is traced",
                num_spans,
                self._url,
                _reason(lines[0]) if lines else "no reason given",
            )
        self._num_lost += num_spans


def _reason(line: str) -> str:
    """What the SDK's line is about, without its own words where they are the known ones."""
    known = re.search(r"(?:Transient error |batch code: )(.+?)(?:,? encountered while .*)?$", line)
    return (known[1] if known else line).rstrip(".")
