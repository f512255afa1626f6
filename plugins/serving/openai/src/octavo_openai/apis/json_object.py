"""The text of a JSON object that comes in pieces, told so that it can be closed at any time.

Arguments that a model writes may break off or be malformed. A client that reads an object must meet neither, so what is
told of them is an object always: as far as they are JSON, and then closed.
Owns: `ObjectText`. Must never know: tools.
"""

from __future__ import annotations

import re
import string
from enum import Enum, auto

_MAX_DEPTH = 100
"""Of lists and objects in each other; clients have limits."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = "[0-9a-fA-F]"
_FIRST_HALF, _SECOND_HALF = f"u[dD][89abAB]{_HEX}{{2}}", rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
"""Of a character beyond 16 bits; neither is anything by itself."""
_ESCAPE = re.compile(rf'\\(["\\/bfnrt]|u(?![dD][89a-fA-F]){_HEX}{{4}}|{_FIRST_HALF}{_SECOND_HALF})')
_ESCAPE_BEGUN = re.compile(rf"\\(u{_HEX}{{0,4}}|{_FIRST_HALF}(\\(u([dD]([c-fC-F]{_HEX}?)?)?)?)?)?")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_SCALAR_CHARACTERS = frozenset("+-." + string.digits + string.ascii_letters)


class State(Enum):
    """What may come next."""

    OBJECT = auto()
    FIRST_KEY = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()
    VALUE = auto()
    IN_STRING = auto()
    IN_SCALAR = auto()
    COMMA = auto()
    NOTHING = auto()


class ObjectText:
    """What `push` and `close` return, joined, is an object in JSON."""

    def __init__(self) -> None:
        self._state = State.OBJECT
        self._held = ""
        """A comma, a key: told with the value that follows."""
        self._begun = ""
        """An escape or a scalar that is not whole."""
        self._closers = ["{}"]
        """What is missing at the end, the last one first."""
        self._told: list[str] = []

    def push(self, text: str) -> str:
        """What is certain now, without white space between tokens."""
        at = 0
        while at < len(text) and self._state is not State.NOTHING:
            if self._state not in (State.IN_STRING, State.IN_KEY):
                self._take(text[at])
                at += 1
            elif not self._begun and (run := _PLAIN.match(text, at)):
                self._write(run[0])
                at = run.end()
            else:
                self._take_in_string(text[at])
                at += 1
        told, self._told = "".join(self._told), []
        return told

    def close(self) -> str:
        """What is missing; nothing at a second time."""
        closers, self._closers, self._state = self._closers, [], State.NOTHING
        return "".join(reversed(closers))

    def _take(self, character: str) -> None:
        if self._state is State.IN_SCALAR:
            if character in _SCALAR_CHARACTERS:
                self._begun += character
                return
            self._end_scalar()
        match self._state, character:
            case _, " " | "\t" | "\n" | "\r":
                pass
            case State.OBJECT, "{":
                self._closers.clear()
                self._open("{", "}", State.FIRST_KEY)
            case State.FIRST_KEY | State.KEY, '"':
                self._held += '"'
                self._state = State.IN_KEY
            case State.COLON, ":":
                self._held += ":"
                self._state = State.VALUE
            case State.FIRST_ITEM | State.VALUE, '"':
                self._open('"', '"', State.IN_STRING)
            case State.FIRST_ITEM | State.VALUE, "{":
                self._open("{", "}", State.FIRST_KEY)
            case State.FIRST_ITEM | State.VALUE, "[":
                self._open("[", "]", State.FIRST_ITEM)
            case State.FIRST_ITEM | State.VALUE, _ if character in _SCALAR_CHARACTERS:
                self._begun, self._state = character, State.IN_SCALAR
            case State.COMMA, ",":
                self._held = ","
                self._state = State.KEY if self._closers[-1] == "}" else State.VALUE
            case State.FIRST_KEY | State.FIRST_ITEM | State.COMMA, _ if character == self._closers[-1]:
                self._close_last()
            case _:
                self._state = State.NOTHING

    def _take_in_string(self, character: str) -> None:
        if self._begun or character == "\\":
            self._begun += character
            if _ESCAPE.fullmatch(self._begun):
                self._write(self._begun)
                self._begun = ""
            elif not _ESCAPE_BEGUN.fullmatch(self._begun):
                self._state = State.NOTHING
        elif character != '"':
            self._write(f"\\u{ord(character):04x}")  # a control character, which models forget to escape
        elif self._state is State.IN_KEY:
            self._held += '"'
            self._state = State.COLON
        else:
            self._close_last()

    def _end_scalar(self) -> None:
        if _SCALAR.fullmatch(self._begun):
            self._told.append(self._held + self._begun)
            self._held, self._state = "", State.COMMA
        else:
            self._state = State.NOTHING
        self._begun = ""

    def _write(self, text: str) -> None:
        if self._state is State.IN_KEY:
            self._held += text
        else:
            self._told.append(text)

    def _open(self, opener: str, closer: str, state: State) -> None:
        if len(self._closers) == _MAX_DEPTH:
            self._state = State.NOTHING
            return
        self._told.append(self._held + opener)
        self._closers.append(closer)
        self._held, self._state = "", state

    def _close_last(self) -> None:
        self._told.append(self._closers.pop())
        self._state = State.COMMA if self._closers else State.NOTHING
