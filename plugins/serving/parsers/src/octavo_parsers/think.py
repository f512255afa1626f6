"""Reasoning between `<think>` and `</think>`, before the answer.

Some chat templates end with the opening mark, and then the output starts inside. Elsewhere in the output the marks are
text: an answer may speak of them.
Owns: that format. Must never know: calls of tools.
"""

from __future__ import annotations

import re
from functools import partial

from octavo.spec import MessageParser
from octavo_parsers.message import MessageWriter
from octavo_parsers.stream import Incoming, Steps, StreamParser

OPEN, CLOSE = "<think>", "</think>"
_NO_MARK = re.compile("[^<]+")
_ANYTHING = re.compile(r"[\s\S]+")


def parser(prompt: str) -> MessageParser:
    """A parser for one completion of the prompt."""
    return StreamParser(partial(_read, starts_inside=prompt.rstrip().endswith(OPEN)))


def _read(incoming: Incoming, message: MessageWriter, starts_inside: bool) -> Steps[None]:
    incoming.keep()
    yield from incoming.skip_space()
    is_inside = (yield from incoming.skip(OPEN)) or starts_inside  # some models open it once more
    before = incoming.kept()
    if is_inside:
        yield from _read_reasoning(incoming, message)
    else:
        message.content.write(before)
    yield from incoming.read_run(_ANYTHING, message.content.write)


def _read_reasoning(incoming: Incoming, message: MessageWriter) -> Steps[None]:
    message.reasoning.mark()
    while (yield from incoming.peek()):
        yield from incoming.read_run(_NO_MARK, message.reasoning.write)
        if (yield from incoming.skip(CLOSE)):
            message.reasoning.mark()
            message.content.mark()
            return
        message.reasoning.write((yield from incoming.read_character()))
