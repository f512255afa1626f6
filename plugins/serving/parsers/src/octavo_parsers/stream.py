"""Text that comes in pieces, read as if all of it were there.

A way to read is a generator: it looks at `Incoming`, writes to a `MessageWriter`, and yields where it needs more text.
Text that was read is gone, and what waits to be read is never longer than a mark of the format, so the work is linear
in the text however it is cut.
Owns: `Incoming`, `StreamParser`. Must never know: formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from octavo.spec import MessageDelta
from octavo_parsers.message import MessageWriter

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields while more text is needed; returns a T."""

SPACE = re.compile(r"\s+")


class Incoming:
    """What has come of the text and was not read yet."""

    def __init__(self) -> None:
        self.ended = False
        """Whether nothing more comes."""
        self._text = ""
        self._at = 0
        self._kept: list[str] | None = None

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def keep(self) -> None:
        """From here on keep what is read, in case that it turns out to be no call."""
        self._kept = []

    def kept(self) -> str:
        """What was read since `keep`; no more is kept."""
        kept, self._kept = "".join(self._kept or ()), None
        return kept

    def peek(self) -> Steps[str]:
        """The next character; empty at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def read_character(self) -> Steps[str]:
        """The next character; empty at the end."""
        character = yield from self.peek()
        return self._read(self._at + len(character))

    def is_next(self, mark: str) -> Steps[bool]:
        """Whether the text goes on with `mark`."""
        while len(self._text) - self._at < len(mark):
            if self.ended or not mark.startswith(self._text[self._at :]):
                return False
            yield
        return self._text.startswith(mark, self._at)

    def skip(self, mark: str) -> Steps[bool]:
        """Read `mark` if the text goes on with it; whether it did."""
        if not (yield from self.is_next(mark)):
            return False
        self._read(self._at + len(mark))
        return True

    def read_run(self, characters: re.Pattern[str], write: Callable[[str], object]) -> Steps[None]:
        """Read as far as there are only `characters` (one class of them, with a `+`), and write them as they come."""
        while True:
            if match := characters.match(self._text, self._at):
                write(self._read(match.end()))
            if self.ended or self._at < len(self._text):
                return
            yield

    def skip_space(self) -> Steps[None]:
        yield from self.read_run(SPACE, len)

    def _read(self, end: int) -> str:
        text, self._at = self._text[self._at : end], end
        if self._kept is not None:
            self._kept.append(text)
        return text


class StreamParser:
    """A `MessageParser` that reads in the given way. It must read up to the end of the text."""

    def __init__(self, read: Callable[[Incoming, MessageWriter], Steps[None]]) -> None:
        self._incoming, self._message = Incoming(), MessageWriter()
        self._steps = read(self._incoming, self._message)

    def push(self, text: str) -> MessageDelta:
        self._incoming.add(text)
        next(self._steps)
        return self._message.take()

    def flush(self) -> MessageDelta:
        self._incoming.ended = True
        for _ in self._steps:
            raise AssertionError("a way to read waits for text after its end")
        self._message.finish()
        return self._message.take()
