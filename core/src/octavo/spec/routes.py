"""Contract of HTTP routes: what a server answers besides its own API.

Owns: what a handler is given, and what it may return or raise. Must never know: any HTTP library, how a body is read
or an answer is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from octavo.errors import OctavoError
from octavo.request import Prompt, Request, RequestOutput, TokensPrompt
from octavo.sampling_params import SamplingParams
from octavo.spec.weights import Tokenizer

B = TypeVar("B", covariant=True)


class ServedModel(Protocol):
    """The part of `octavo.AsyncLLM` that answers are made with; its docstrings tell more."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def max_model_len(self) -> int: ...

    def default_sampling_params(self, **changes: Any) -> SamplingParams: ...

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> TokensPrompt: ...

    async def make_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Request:
        """`request_id` must not be in use; `HTTPCall.new_request_id` makes one. Raises `InvalidRequestError`."""
        ...

    def stream(self, request: Request, *, cumulative: bool = False) -> AsyncGenerator[RequestOutput, None]: ...

    async def complete(self, request: Request) -> RequestOutput: ...

    async def reset_prefix_cache(self) -> None: ...


class HTTPCall(Protocol[B]):
    """One HTTP request to a route, read, allowed and found well-formed."""

    @property
    def body(self) -> B:
        """A record of the type that the route's entry names; None if it names none."""
        ...

    @property
    def path(self) -> Mapping[str, str]:
        """Values of the path's parameters, by name."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """A name is found however it is capitalised."""
        ...

    @property
    def request_id(self) -> str:
        """The client's own, or made for it; for headers and logs. Two calls may have the same one."""
        ...

    @property
    def trace_headers(self) -> Mapping[str, str] | None:
        """The client's trace context, to be handed to `make_request`; None if it sent none."""
        ...

    def new_request_id(self) -> str:
        """An id for the engine, which no other request has."""
        ...


@dataclass(frozen=True, slots=True)
class HTTPContent:
    """An answer that is not JSON."""

    body: bytes
    content_type: str

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise TypeError(f"the body of an HTTPContent is bytes, not {type(self.body).__name__}")
        if not (self.content_type.isascii() and self.content_type.isprintable()):
            raise ValueError(f"{self.content_type!r} is no content type; write it like text/plain")


@dataclass(frozen=True, slots=True)
class HTTPEvents:
    """A stream of server-sent events, at least one, each a record as JSON.

    An error before the first event is answered with its own status; a later one is the last event. The generator is
    closed when the client leaves: consume `ServedModel.stream` inside `async with contextlib.aclosing(...)`, so that
    its request is aborted at once.
    """

    records: AsyncGenerator[msgspec.Struct, None]


class HTTPError(OctavoError):
    """The request ends with this status (400 to 599) and message."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        """`code`: one word for programs, like `not_found`."""
        if not (isinstance(status, int) and 400 <= status <= 599):
            raise ValueError(f"the status of an error is a number from 400 to 599, not {status!r}")
        super().__init__(message)
        self.status, self.code = status, code


HTTPAnswer = msgspec.Struct | HTTPContent | HTTPEvents
RouteHandler = Callable[[HTTPCall[Any]], Awaitable[HTTPAnswer]]
"""Answers one call. Many run at a time, in the server's event loop: what takes long belongs into a thread.

When the client leaves or its time is up, the handler is cancelled, and so are the model's requests that it awaits. An
`InvalidRequestError` becomes a 400 that names the field, an `HTTPError` the status that it holds; any other exception
becomes a 500, with a traceback in the log.
"""
