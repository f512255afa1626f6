"""Llama 3's calls in JSON: `{"name": …, "parameters": {…}}`, several of them with `;` between.

They stand at the start of the output or behind `<|python_tag|>`. JSON at the start may as well be an answer, so there
it is a call only if its name is that of a tool that the request offers.
Owns: that format. Must never know: calls that are written as Python; they are content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from octavo.spec import MessageParser, Tool
from octavo_parsers.call import read_call
from octavo_parsers.message import MessageWriter
from octavo_parsers.stream import Incoming, Steps, StreamParser

TAG = "<|python_tag|>"
_NO_TAG = re.compile("[^<]+")


def parser(tools: Sequence[Tool]) -> MessageParser:
    """A parser for one completion of a request with these tools."""
    return StreamParser(partial(_read, names={tool["function"]["name"] for tool in tools}))


def _read(incoming: Incoming, message: MessageWriter, names: set[str]) -> Steps[None]:
    yield from _read_calls(incoming, message, names)
    while (yield from incoming.peek()):
        yield from incoming.read_run(_NO_TAG, message.content.write)
        if (yield from incoming.is_next(TAG)):
            yield from _read_calls(incoming, message, names)
        else:
            message.content.write((yield from incoming.read_character()))


def _read_calls(incoming: Incoming, message: MessageWriter, names: set[str]) -> Steps[None]:
    """Read calls as long as there are some."""
    is_tagged = False
    incoming.keep()
    while True:
        yield from incoming.skip_space()
        is_tagged |= yield from incoming.skip(TAG)
        yield from incoming.skip_space()
        is_tool = bool if is_tagged else names.__contains__
        if (yield from incoming.peek()) != "{" or not (yield from read_call(incoming, message, is_tool)):
            message.content.write(incoming.kept())
            return
        incoming.keep()
        yield from incoming.skip_space()
        if (yield from incoming.skip(";")):
            yield from incoming.skip_space()
        if not (yield from incoming.peek()):
            return
