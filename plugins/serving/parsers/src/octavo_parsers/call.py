"""One call of a tool as a JSON object: `{"name": …, "arguments": {…}}`.

Owns: `read_call`. Must never know: what stands around calls.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo_parsers.json_text import decoded, read_text, read_value
from octavo_parsers.message import MessageWriter
from octavo_parsers.stream import Incoming, Steps

ARGUMENTS = ("arguments", "parameters")
"""Hermes' word and Llama's; models mix them up."""


def read_call(
    incoming: Incoming, message: MessageWriter, is_tool: Callable[[str], bool], stop: str = ""
) -> Steps[bool]:
    """Read an object; whether it was a call from its beginning to its end.

    The call stands in the message as soon as its tool is known and its arguments begin. If it breaks off, what is kept
    of the text since then, or since the caller said `keep`, is still to be said. A call that lacks its last brackets
    may end before the mark `stop`.
    """
    call = _Call(incoming, message, is_tool, stop)
    yield from incoming.skip("{")
    while (yield from call.read_member()):
        yield from incoming.skip_space()
        if (yield from incoming.skip("}")) or (stop and (yield from incoming.is_next(stop))):
            return call.end()
        if not (yield from incoming.skip(",")):
            break
    return False


class _Call:
    """What is known of a call in the middle of it."""

    def __init__(self, incoming: Incoming, message: MessageWriter, is_tool: Callable[[str], bool], stop: str) -> None:
        self._incoming, self._message, self._is_tool, self._stop = incoming, message, is_tool, stop
        self._name: str | None = None
        self._arguments: str | None = None
        """Those that came before the name."""
        self._is_told = False
        """Whether it stands in the message."""
        self._has_others = False
        """Whether it has members that no call has."""

    def read_member(self) -> Steps[bool]:
        """Read a key and its value; whether a call can have them."""
        yield from self._incoming.skip_space()
        key = yield from read_text(self._incoming)
        yield from self._incoming.skip_space()
        if key is None or not (yield from self._incoming.skip(":")):
            return False
        yield from self._incoming.skip_space()
        if key == "name" and self._name is None:
            self._name = yield from read_text(self._incoming)
            return bool(self._name) and self._is_tool(self._name or "")
        if key in ARGUMENTS and self._arguments is None and not self._is_told:
            return (yield from self._read_arguments())
        self._has_others = True
        return (yield from read_value(self._incoming, len, self._stop))

    def end(self) -> bool:
        """The object has ended; whether it was a call."""
        if self._is_told:
            return True
        if self._name is None or (self._arguments is None and self._has_others):
            return False  # something else with a name
        self._tell(self._arguments or "{}")
        return True

    def _read_arguments(self) -> Steps[bool]:
        if self._name is not None and (yield from self._incoming.peek()) == "{":
            self._tell("")
            is_whole = yield from read_value(self._incoming, self._message.write_arguments, self._stop)
            self._incoming.keep()
            return is_whole
        pieces: list[str] = []
        if not (yield from read_value(self._incoming, pieces.append, self._stop)):
            return False
        arguments = _as_object("".join(pieces))
        if self._name is None:
            self._arguments = arguments
        else:
            self._tell(arguments)
            self._incoming.keep()
        return True

    def _tell(self, arguments: str) -> None:
        """Put the call into the message; what was read of it is said with that."""
        self._incoming.kept()
        self._message.begin_call(self._name or "")
        self._message.write_arguments(arguments)
        self._is_told = True


def _as_object(value: str) -> str:
    """Arguments that are an object in a string, as some models write them, or none at all."""
    if value == "null":
        return "{}"
    said = decoded(value) if value.startswith('"') else None
    return said if said is not None and said.lstrip().startswith("{") else value
