"""Errors as Anthropic's API writes them. Owns: that shape. Must never know: which errors there are."""

from __future__ import annotations

import msgspec

from octavo_openai.errors import APIError
from octavo_openai.http.answers import frame
from octavo_openai.http.error_shapes import ErrorShape

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorDetail(msgspec.Struct, kw_only=True):
    type: str
    message: str
    """Begins with the field of the request at fault, if one is."""


class AnthropicError(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    error: AnthropicErrorDetail


def anthropic_error(error: APIError) -> AnthropicError:
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return AnthropicError(error=AnthropicErrorDetail(type=kind, message=error.message))


ANTHROPIC_ERRORS = ErrorShape(
    record=AnthropicError, body=anthropic_error, event=lambda error: frame(anthropic_error(error))
)
