"""Contract of tool and reasoning parsers: what of a model's text is content, what reasoning, what a call of a tool.

Owns: the forms of messages and tools, `MessageParser`. Must never know: how any model writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, Any]
"""A message as chat templates get it: `{"role": …, "content": text or a list of parts, …}`."""
Tool = Mapping[str, Any]
"""As chat templates get it:
`{"type": "function", "function": {"name": …, "description": …, "parameters": {JSON schema}}}`."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of one call."""

    index: int
    """Which call of the message, from 0; calls come one after the other."""
    name: str | None = None
    """The tool; comes once, in the call's first delta."""
    arguments: str = ""
    """JSON text of an object, in pieces; those of an output that was cut off, or is malformed, may be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """What is new of a message. Content and calls have no order between them: content may stand before and after."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class MessageParser(Protocol):
    """Takes one completion's text apart as it comes. Stateful: one for each completion.

    All deltas of a text joined do not depend on how the text was cut, and every text is parsed: what merely looks
    like the format, or is malformed, comes out as content, with nothing lost, doubled or reordered. Only marks of the
    format, and white space next to them, are left out. It is called for every token, so it must not go over the
    text again from its start.
    """

    def push(self, text: str) -> MessageDelta:
        """What this text adds for certain. It may be a character, the whole output, or nothing. Raises nothing."""
        ...

    def flush(self) -> MessageDelta:
        """The output has ended: what was held back. Nothing more at a second time."""
        ...


MakeToolParser = Callable[[Sequence[Tool]], MessageParser]
"""Makes the parser of one completion, of a request that offers these tools."""
MakeReasoningParser = Callable[[str], MessageParser]
"""Makes the parser of one completion of this prompt, or of the end of it."""
SpellOut = Callable[[Sequence[Message], Sequence[Tool]], Sequence[Message]]
"""Tells a conversation about tools in plain messages."""
