"""An HTTP request to try a route's handler with, without a server.

    answer = await handler(PlainCall(MyRecord(text="Hello")))

Owns: `PlainCall`. Must never know: servers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class PlainCall(Generic[B]):
    """Implements `octavo.spec.HTTPCall`."""

    body: B
    path: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = "test"
    trace_headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", _Headers(self.headers))

    def new_request_id(self) -> str:
        return f"{self.request_id}-{secrets.token_hex(8)}"


class _Headers(Mapping[str, str]):
    """Finds a name however it is capitalised, as a server does."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
