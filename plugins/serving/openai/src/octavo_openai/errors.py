"""Why a request fails, and what its client is told.

Owns: `APIError`, and which exception becomes which. Must never know: routes, the JSON of any API.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.spec import HTTPError

RETRY_AFTER = 1
"""Seconds that a client is told to wait where nothing better is known."""
MODEL_LOADING = "model_loading"
"""The code of the error while the model is being loaded."""
_HEAD, _TAIL = 200, 100
"""Characters that are kept of a long message: what is wrong comes first, what to do about it last."""


class APIError(Exception):
    """A request ends with this status and message; nothing is wrong with the server."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if status < 500:  # it may quote the client, however much that sent
            message, param = _cut(message), param and _cut(param)
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @classmethod
    def unavailable(cls, message: str, code: str, status: int = 503, retry_after: int = RETRY_AFTER) -> APIError:
        """The same request may succeed later."""
        return cls(status, message, code=code, headers={"retry-after": str(retry_after)})

    @property
    def kind(self) -> str:
        """OpenAI's word for the class of error."""
        if self.status >= 500:
            return "server_error"
        return {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")


def _cut(text: str) -> str:
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"


def as_api_error(error: Exception) -> APIError | None:
    """What an exception means to the client; None for one that nobody foresaw."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, InvalidRequestError):
        return APIError(400, str(error), param=error.field, code="invalid_value")
    if isinstance(error, HTTPError):
        return APIError(error.status, str(error), code=error.code)
    if isinstance(error, EngineDeadError):
        return APIError.unavailable(str(error), "engine_dead")
    return None


@contextmanager
def field_names(names: Mapping[str, str]) -> Generator[None]:
    """Within it, errors about the engine's fields (keys) name those that the client wrote (values)."""
    try:
        yield
    except InvalidRequestError as error:
        if error.field not in names:
            raise
        message = str(error).removeprefix(f"{error.field}: ")
        raise InvalidRequestError(names[error.field], message) from error
