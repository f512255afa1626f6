"""What this plugin offers, and its options. Owns: those. Must never know: OpenTelemetry, before it is configured.

Where the plugin is merely installed, nothing of OpenTelemetry is imported, so that it costs nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from octavo.config import EngineConfig, Section
from octavo.errors import ConfigError
from octavo.hookspecs import hookimpl
from octavo.spec import Observer

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x21-\x7e]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+([ \t]+[\x21-\x7e]+)*")


class OtelOptions(Section, frozen=True):
    """`plugins.otel.…`"""

    endpoint: Annotated[
        str, Meta(description="Collector that takes OTLP over HTTP, such as http://localhost:4318; empty: no tracing.")
    ] = ""
    headers: Annotated[
        dict[str, str], Meta(description="HTTP headers to send with the spans.", extra={"secret": True})
    ] = msgspec.field(default_factory=dict)
    service_name: Annotated[
        str, Meta(description="Name of this service in the traces; empty: OTEL_SERVICE_NAME, or else octavo.")
    ] = ""
    model_name: Annotated[
        str, Meta(description="Name of the model in the traces; empty: the hub id, or the last part of model.path.")
    ] = ""
    sample_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Part of the requests to trace; a client's traceparent decides its own.")
    ] = 1.0
    timeout: Annotated[
        float, Meta(gt=0, description="Seconds that sending one batch of spans may take, retries included.")
    ] = 5.0

    def __post_init__(self) -> None:
        if self.endpoint:
            _check_endpoint(self.endpoint)
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise ConfigError(f"headers: {name!r} is no HTTP header: names and values are plain ASCII on one line")

    @property
    def traces_url(self) -> str:
        """Where the spans go: the endpoint, with the path of OTLP/HTTP where it has none of its own."""
        parts = urlsplit(self.endpoint)
        return parts._replace(path="/v1/traces").geturl() if parts.path in ("", "/") else self.endpoint


def _check_endpoint(endpoint: str) -> None:
    if not _is_url(endpoint):
        raise ConfigError(
            f"endpoint: {endpoint!r} is no URL of a collector; write it like http://localhost:4318 "
            "(its port for OTLP over HTTP, not the one for gRPC)"
        )
    if urlsplit(endpoint).username is not None:
        raise ConfigError("endpoint: has a user name or password in it; put them into headers, as authorization")


def _is_url(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False
    return whole and _PLAIN.fullmatch(endpoint) is not None


@hookimpl
def octavo_options() -> type[Section]:
    return OtelOptions


@hookimpl
def octavo_make_observers(config: EngineConfig, options: OtelOptions) -> list[Observer]:
    if not options.endpoint:
        return []
    from octavo_otel.tracer import RequestTracer

    return [RequestTracer(options, options.model_name or _model_name(config.model.path))]


def _model_name(path: str | None) -> str | None:
    """A local path's last part, for the rest says more about the machine than about the model; a hub id as it is."""
    if path is None:
        return None
    local = Path(path).expanduser()
    return local.resolve().name if local.exists() else path
