"""JSON values in text that comes in pieces: where they end, not what is in them.

Owns: reading of values and strings. Must never know: calls, messages. Whatever the text is, something is read or it is
said that there is no value; nothing is checked that is not needed to find the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from octavo_parsers.stream import Incoming, Steps

_IN_STRING = re.compile(r'[^"\\]+')
_BETWEEN = re.compile(r'[^"{}\[\]<]+')
_SCALAR = re.compile(r"[a-zA-Z0-9+\-.]+")


def read_value(incoming: Incoming, write: Callable[[str], object], stop: str = "") -> Steps[bool]:
    """Read a value and write its text as it comes; whether there was a whole one.

    An object or list that lacks brackets ends before the mark `stop`, if there is one, and is as good as whole. In
    a string it is no mark.
    """
    first = yield from incoming.peek()
    if first == '"':
        return (yield from _read_string(incoming, write))
    if first and first in "{[":
        return (yield from _read_nested(incoming, write, stop))
    num_pieces = 0

    def count(piece: str) -> None:
        nonlocal num_pieces
        num_pieces += 1
        write(piece)

    yield from incoming.read_run(_SCALAR, count)
    return num_pieces > 0


def read_text(incoming: Incoming) -> Steps[str | None]:
    """Read a string; what it says, or None if there is none, or a broken one."""
    if (yield from incoming.peek()) != '"':
        return None
    pieces: list[str] = []
    yield from _read_string(incoming, pieces.append)
    return decoded("".join(pieces))


def decoded(string: str) -> str | None:
    """What a JSON string says; None if it is broken, or says halves of characters."""
    try:
        text = json.loads(string, strict=False)
        text.encode()
    except ValueError:
        return None
    return text


def _read_string(incoming: Incoming, write: Callable[[str], object]) -> Steps[bool]:
    write((yield from incoming.read_character()))
    while True:
        yield from incoming.read_run(_IN_STRING, write)
        character = yield from incoming.read_character()
        write(character)
        if character == "\\":
            write((yield from incoming.read_character()))
        else:
            return character == '"'


def _read_nested(incoming: Incoming, write: Callable[[str], object], stop: str) -> Steps[bool]:
    depth = 0  # a count, no recursion: the model decides how deep it goes
    while True:
        yield from incoming.read_run(_BETWEEN, write)
        character = yield from incoming.peek()
        if character == '"':
            yield from _read_string(incoming, write)
            continue
        if not character:
            return False
        if character == "<" and stop and (yield from incoming.is_next(stop)):
            return True
        write((yield from incoming.read_character()))
        depth += (character in "{[") - (character in "}]")
        if depth == 0:
            return True
