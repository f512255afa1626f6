"""Calls as JSON between `<tool_call>` and `</tool_call>`, with text around them: Hermes' format and SmolLM2's.

Hermes has an object in each pair of marks, SmolLM2 one list of objects, which is empty if there is nothing to call.
Both are read wherever either is expected. What is neither is content.
Owns: that format. Must never know: which model speaks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.spec import MessageParser, Tool
from octavo_parsers.call import read_call
from octavo_parsers.message import MessageWriter
from octavo_parsers.stream import Incoming, Steps, StreamParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NO_MARK = re.compile("[^<]+")


def parser(tools: Sequence[Tool]) -> MessageParser:
    """A parser for one completion. What stands between the marks is a call, of whichever tool."""
    return StreamParser(_read)


def _read(incoming: Incoming, message: MessageWriter) -> Steps[None]:
    while (yield from incoming.peek()):
        yield from incoming.read_run(_NO_MARK, message.content.write)
        incoming.keep()
        if not (yield from incoming.skip(OPEN)):
            yield from incoming.read_character()
        elif (yield from _read_calls(incoming, message)):
            message.content.mark()
            incoming.kept()
            continue
        message.content.write(incoming.kept())


def _read_calls(incoming: Incoming, message: MessageWriter) -> Steps[bool]:
    """Read up to the closing mark; whether there was nothing but calls, and all that is kept is said with them."""
    yield from incoming.skip_space()
    is_list = yield from incoming.skip("[")
    has_calls = False
    yield from incoming.skip_space()
    while (yield from incoming.peek()) == "{":
        if not (yield from read_call(incoming, message, is_tool=bool, stop=CLOSE)):
            return False
        has_calls = True
        incoming.keep()
        yield from incoming.skip_space()
        if (yield from incoming.skip(",")):
            yield from incoming.skip_space()
    is_closed_list = is_list and (yield from incoming.skip("]"))
    if is_closed_list and has_calls:
        incoming.keep()
    yield from incoming.skip_space()
    return (has_calls or is_closed_list) and (yield from incoming.skip(CLOSE))
