"""Forms of an answer besides a record: events that come one by one, and bytes.

Owns: those, and the frame of an event. Must never know: what is in them, how they are sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

DONE = b"data: [DONE]\n\n"
"""What OpenAI ends a stream with."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class EventStream:
    """Server-sent events. Each item is one or several of them, framed.

    Nothing is sent before the first item, so that an exception until then is an ordinary error.
    """

    frames: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of some type."""

    body: bytes
    content_type: str


def frame(record: msgspec.Struct) -> bytes:
    """An event without a name."""
    return b"data: " + _encode(record) + b"\n\n"
