"""Calls of tools in JSON whose form a grammar guarantees; no tool parser of a model's own format is needed for them.

Owns: parsers of that JSON, implementing `octavo.spec.MessageParser`. Must never know: schemas, grammars.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from octavo.spec import MessageDelta, MessageParser, ToolCallDelta

NAME, ARGUMENTS = "name", "arguments"
"""The properties of each element of the list, in this order."""


class ArgumentsParser:
    """The whole output is the arguments of one call, whose tool is known."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> MessageDelta:
        if not text:
            return MessageDelta()
        name, self._name = self._name, None
        return MessageDelta(tool_calls=(ToolCallDelta(0, name, text),))

    def flush(self) -> MessageDelta:
        return MessageDelta()


class Stage(Enum):
    """Where in the list a parser is."""

    OUTSIDE = auto()
    BEFORE_NAME = auto()
    NAME = auto()
    BEFORE_ARGUMENTS = auto()
    ARGUMENTS = auto()


class CallListParser:
    """The output is `[{"name": …, "arguments": …}, …]`; arguments are told as they come."""

    def __init__(self) -> None:
        self._stage = Stage.OUTSIDE
        self._depth = 0
        self._in_string = self._escaped = False
        self._index = -1
        self._name = ""
        """JSON text of the current call's name, as far as it has come."""

    def push(self, text: str) -> MessageDelta:
        deltas: list[ToolCallDelta] = []
        arguments = ""
        for character in text:
            if self._is_of_arguments(character):
                arguments += character
                continue
            if arguments:
                deltas.append(ToolCallDelta(self._index, None, arguments))
                arguments = ""
            if name := self._advance(character):
                deltas.append(ToolCallDelta(self._index, name))
        if arguments:
            deltas.append(ToolCallDelta(self._index, None, arguments))
        return MessageDelta(tool_calls=tuple(deltas))

    def flush(self) -> MessageDelta:
        return MessageDelta()

    def _is_of_arguments(self, character: str) -> bool:
        """Follow strings and nesting over one character; whether it is told as arguments."""
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._in_string = True
        elif character in "[{":
            self._depth += 1
        elif character in "]}":
            self._depth -= 1
        return self._stage is Stage.ARGUMENTS and self._depth >= 2

    def _advance(self, character: str) -> str | None:
        """Go on by a character that is not of arguments; the name, once it is whole."""
        match self._stage, character:
            case Stage.NAME, "," if not self._in_string:
                self._stage = Stage.BEFORE_ARGUMENTS
                return msgspec.json.decode(self._name, type=str)
            case Stage.NAME, _:
                self._name += character
            case Stage.OUTSIDE, "{":
                self._stage, self._index, self._name = Stage.BEFORE_NAME, self._index + 1, ""
            case Stage.BEFORE_NAME, ":":
                self._stage = Stage.NAME
            case Stage.BEFORE_ARGUMENTS, ":":
                self._stage = Stage.ARGUMENTS
            case Stage.ARGUMENTS, _:
                self._stage = Stage.OUTSIDE
        return None


class CallsOrContentParser:
    """The output is a list of calls, or else content that does not begin like a list."""

    def __init__(self) -> None:
        self._calls: MessageParser | None = None
        self._is_content = False
        self._space = ""

    def push(self, text: str) -> MessageDelta:
        if self._calls is None and not self._is_content:
            self._space += text
            text = self._space
            if not text.strip():
                return MessageDelta()
            if text.lstrip().startswith("["):
                self._calls = CallListParser()
            else:
                self._is_content = True
        return MessageDelta(content=text) if self._calls is None else self._calls.push(text)

    def flush(self) -> MessageDelta:
        if self._calls is not None or self._is_content:
            return MessageDelta()
        space, self._space = self._space, ""
        return MessageDelta(content=space)
