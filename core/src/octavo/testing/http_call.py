"""An HTTP request to try a route's handler with, without a server.

    answer = await handler(PlainCall(MyRecord(text="Hello")))

Owns: `PlainCall`. Must never know: servers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

B = TypeVar("B")

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class PlainCall(Generic[B]):
    """Implements `octavo.spec.HTTPCall`."""

    body: B
    path: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in small letters."""
    request_id: str = "test"
    trace_headers: Mapping[str, str] | None = None

    def new_request_id(self) -> str:
        return f"{self.request_id}-{next(_serials)}"
