"""The server's log: a line for each request, lines of throughput, as text or as JSON, never with anybody's text.

Owns: what such lines say, how all log lines are written. Must never know: who logs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from octavo_openai.errors import MODEL_LOADING
from octavo_openai.observation.throughput import Throughput

logger = logging.getLogger("octavo_openai")
throughput_logger = logging.getLogger("octavo_openai.throughput")
"""Of its own, since its lines are not switched off with those of requests."""

_FIELDS = "fields"
"""The attribute of a log record that holds what is known besides its message."""
_MAX_PATH = 200


def configure_logging(form: Literal["text", "json"], log_requests: bool) -> None:
    """Write every log line of this process to standard error, in this form; those for debugging if core's are, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    level = min(logging.INFO, logging.getLogger("octavo").getEffectiveLevel())
    logger.setLevel(level if log_requests else logging.WARNING)
    throughput_logger.setLevel(logging.INFO)


def log_request(
    *,
    request_id: str,
    method: str,
    path: str,
    status: int,
    duration: float,
    prompt_tokens: int | None,
    completion_tokens: int | None,
    finish_reasons: list[str],
    error: str | None,
    is_polled: bool,
) -> None:
    """`path` as the client wrote it, percent-encoded.

    Where it is polled, successes are for debugging, and so is what is said while the model is being loaded.
    """
    is_news = not is_polled or (status >= 400 and error != MODEL_LOADING)
    level = logging.INFO if is_news else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    fields = {
        "request_id": request_id,
        "method": method,
        "path": path[:_MAX_PATH],
        "status": status,
        "duration": round(duration, 4),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "finish_reasons": finish_reasons or None,
        "error": error,
    }
    logger.log(level, "request", extra=_extra(fields))


def log_throughput(throughput: Throughput) -> None:
    throughput_logger.info("throughput", extra=_extra(asdict(throughput)))


def _extra(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Those that are known, where the formatters look for them."""
    return {_FIELDS: {name: value for name, value in fields.items() if value is not None}}


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JSONFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """One line, what is known besides the message as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {})
        said = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        line = f"{_time_of(record)} {record.levelname}: {record.getMessage()} {said}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _shown(value: Any) -> str:
    text = ",".join(value) if isinstance(value, list) else str(value)
    return text if text.isprintable() and " " not in text else repr(text)
