"""A stream of completion chunks: server-sent events out of bytes, chunks out of events.

Owns: the framing, and which fields of a chunk are read. Must never know: HTTP, clocks.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"
"""The data of a stream's last event."""


class Event(msgspec.Struct, frozen=True):
    name: bytes
    """`message` unless the stream says otherwise; `error` also where a line is called so instead of `data`."""
    data: bytes


class EventParser:
    """Server-sent events (WHATWG HTML, section 9.2.6), however the bytes are cut; lines end with LF or CRLF."""

    def __init__(self) -> None:
        self._rest = b""
        """The line that has not ended yet."""
        self._name = b"message"
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._take(line)
            elif self._data:
                events.append(Event(self._name, b"\n".join(self._data)))
                self._name, self._data = b"message", []
        return events

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")  # an empty field is a comment, which keeps a connection alive
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"error":  # llama.cpp before 2025 writes errors so
            self._name = b"error"
            self._data.append(value)


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether the model has said something: text, reasoning, or a part of a tool call."""
        d = self.delta
        return bool(self.text or (d and (d.content or d.reasoning or d.reasoning_content or d.tool_calls)))


class Chunk(msgspec.Struct, frozen=True):
    """A chunk of `/v1/completions` or `/v1/chat/completions`; all other fields are skipped."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Raises `msgspec.DecodeError` if it is no JSON or its fields have other types."""
    return _decoder.decode(data)


def error_message(data: bytes) -> str:
    """What a server says of an error, in the shapes that servers have; the text itself if it is none of them."""
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        found = data.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return " ".join(str(found).split())[:300]
