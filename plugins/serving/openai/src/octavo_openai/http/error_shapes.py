"""Errors as JSON: OpenAI's, which every route has that names no other.

Owns: `ErrorShape` and that shape. Must never know: which errors there are, how an answer is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo_openai.errors import APIError
from octavo_openai.http.answers import frame


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    """The field of the request at fault."""
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How an API writes its errors."""

    record: type[msgspec.Struct]
    body: Callable[[APIError], msgspec.Struct]
    event: Callable[[APIError], bytes]
    """The last event of a stream that cannot go on."""


def error_body(error: APIError) -> ErrorBody:
    detail = ErrorDetail(message=error.message, type=error.kind, param=error.param, code=error.code)
    return ErrorBody(error=detail)


OPENAI_ERRORS = ErrorShape(record=ErrorBody, body=error_body, event=lambda error: frame(error_body(error)))
