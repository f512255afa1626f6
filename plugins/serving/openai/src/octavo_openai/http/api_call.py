"""What a handler is given, and what it leaves behind for the log.

Owns: `APICall`, ids. Must never know: how a body was read or an answer is sent.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo_openai.observation.token_count import TokenCount
from octavo_openai.service import Service

B = TypeVar("B")

MAX_ID_CHARS = 128
_serials = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class APICall(Generic[B]):
    """One HTTP request, read and found well-formed."""

    service: Service
    request_id: str
    """The client's own, or made for it; for headers and logs. Two API calls may have the same one."""
    headers: Mapping[str, str]
    """Of the HTTP request; names in any case."""
    body: B
    path: Mapping[str, str] = field(default_factory=dict)
    """Parameters in the path."""
    count: TokenCount | None = None
    """Set by the handler, for the log."""
    finish_reasons: list[str] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    at_end: ExitStack = field(default_factory=ExitStack)
    """Is left when the answer has been sent, or will not be."""

    def new_request_id(self) -> str:
        """An id for the engine, which no other request has."""
        return engine_id(self.request_id)

    @property
    def trace_headers(self) -> dict[str, str] | None:
        """The client's trace, for observers that go on with it; None if it has none."""
        found = {name: self.headers[name] for name in ("traceparent", "tracestate") if name in self.headers}
        return found or None


def new_id(prefix: str, wanted: str | None = None) -> str:
    """An id for an answer: with the client's own word in it, if that can stand in a log, or a random one."""
    return f"{prefix}{checked_id(wanted) or secrets.token_hex(16)}"


def engine_id(answer_id: str) -> str:
    """An id for the engine, which no other request of this process has, whatever clients send."""
    return f"{answer_id}-{next(_serials)}"


def checked_id(given: str | None) -> str | None:
    """An id from a client, or None if it is not printable ASCII of a sensible length."""
    if given and len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return None
