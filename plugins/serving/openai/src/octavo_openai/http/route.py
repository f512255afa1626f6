"""What a route is. Owns: `Route`. Must never know: which routes there are, how a request is read or an answer sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from octavo.spec import HTTPContent
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import APICall
from octavo_openai.http.error_shapes import OPENAI_ERRORS, ErrorShape
from octavo_openai.options import ServerOptions

Answer = msgspec.Struct | EventStream | HTTPContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path, and who answers."""

    method: str
    path: str
    """With parameters as Starlette writes them: `{id}`, or `{id:path}` for one with slashes."""
    handler: Callable[[APICall], Awaitable[Answer]]
    summary: str
    operation_id: str | None = None
    """Its name in `/openapi.json`; None: that of the handler."""
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    """None: what it answers has no schema."""
    events: tuple[type[msgspec.Struct], ...] = ()
    """What the events of a stream hold, if it can stream."""
    is_open: Callable[[ServerOptions], bool] = lambda options: False
    """Whether it answers without a key."""
    is_polled: bool = False
    """Whether clients ask again and again, so that a success is no news."""
    errors: ErrorShape = OPENAI_ERRORS
