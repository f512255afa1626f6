"""An answer that comes as events, one by one.

Owns: `EventStream`, and the frame of an event. Must never know: what is in them, how they are sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from octavo_openai.errors import APIError

DONE = b"data: [DONE]\n\n"
"""What OpenAI ends a stream with."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class EventStream:
    """Server-sent events. Each item is one or several of them, framed.

    Nothing is sent before the first item, so that an exception until then is an ordinary error.
    """

    frames: AsyncGenerator[bytes, None]
    failure: Callable[[APIError], bytes] | None = None
    """Its last events if it cannot go on; None: the one that the route has for all streams."""


def frame(record: msgspec.Struct) -> bytes:
    """An event; its name is the record's tag, if it has one."""
    data = b"data: " + _encode(record) + b"\n\n"
    name = record.__struct_config__.tag
    return data if name is None else f"event: {name}\n".encode() + data
