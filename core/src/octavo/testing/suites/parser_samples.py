"""Texts to try tool and reasoning parsers with: what is known about them, and what can be done to them.

Owns: `ParserSample`, `Message`, `PLAIN`, cutting and damaging. Must never know: formats, parsers' insides.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.spec import MessageDelta, MessageParser


@dataclass(frozen=True, slots=True)
class ParserSample:
    """An output of a model, and what a parser makes of it."""

    text: str
    content: str = field(default="", kw_only=True)
    reasoning: str = field(default="", kw_only=True)
    calls: Sequence[tuple[str, Mapping[str, Any]]] = field(default=(), kw_only=True)
    """Names and arguments of the calls of tools."""
    prompt: str = field(default="", kw_only=True)
    """What the output continues; only reasoning parsers see it."""


@dataclass(slots=True)
class Message:
    """Deltas joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments, as text."""

    def add(self, delta: MessageDelta) -> None:
        """Raises `AssertionError` for calls that do not come one after the other, each with its name first."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.tool_calls:
            if call.index == len(self.calls):
                assert call.name, f"call {call.index} begins without a name"
                self.calls.append((call.name, call.arguments))
            else:
                assert call.index == len(self.calls) - 1, f"a delta of call {call.index} after {len(self.calls)} calls"
                assert call.name is None, f"call {call.index} is named twice"
                name, arguments = self.calls[-1]
                self.calls[-1] = (name, arguments + call.arguments)

    @property
    def channels(self) -> list[str]:
        """Each text that comes out in order."""
        return [self.content, self.reasoning, *(text for call in self.calls for text in call)]


def parse(parser: MessageParser, pieces: Iterable[str]) -> Message:
    """The message of a text that comes in these pieces."""
    message = Message()
    for piece in pieces:
        message.add(parser.push(piece))
    message.add(parser.flush())
    return message


PLAIN: tuple[str, ...] = (
    *("", " ", "\n\n", "Hello.", "  spaces before and behind \n", "Größe 3 < 4 > 2 & 😀 e\u0301\r\n\tend"),
    "A list:\n- one\n- two\n\n```python\nprint({'a': [1, 2]})\n```\n",
    *('{"answer": 42, "list": [1, {"deep": null}]}', "[1, 2, 3]", '"a string"', "null", "f = {x | x > 0}; [y]"),
    *("<b>bold</b> and <i>half", "<", "<t", "a <tool", "I <3 you, </3", "{", '{"', '{"name', "[", "\\", '"', "|", "<|"),
)
"""Texts that no format may take for anything but content."""


def cuttings(text: str, rng: random.Random) -> Iterator[list[str]]:
    """The text in pieces: characters, halves, of random length, some of them empty."""
    yield list(text)
    for place in sorted(rng.sample(range(len(text) + 1), min(len(text) + 1, 12))):
        yield [text[:place], text[place:]]
    for most in (2, 4, 9, 30):
        pieces, start = [], 0
        while start < len(text):
            end = start + rng.randint(0, most)
            pieces.append(text[start:end])
            start = end
        yield pieces


def damaged(text: str, rng: random.Random, count: int) -> Iterator[str]:
    """The text cut off, with parts that are missing, doubled, elsewhere or replaced by marks that JSON is made of."""
    for _ in range(count):
        start, end = sorted(rng.choices(range(len(text) + 1), k=2))
        part = text[start:end]
        rest = text[:start] + text[end:]
        place = rng.randint(0, len(rest))
        marks = "".join(rng.choices("{}[]\",:\\<>/ \n;|'", k=rng.randint(1, 3)))
        yield rng.choice(
            (
                text[:end],
                rest,
                text[:end] + part + text[end:],
                rest[:place] + part + rest[place:],
                text[:start] + marks + text[start:],
                text[:start] + marks + text[min(start + 1, len(text)) :],
            )
        )
