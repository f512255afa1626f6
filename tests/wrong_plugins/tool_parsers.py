"""A tool parser as it should be, and ones that are each wrong in one way, under their suite.

A call is written as `«name:arguments»`.
"""

from __future__ import annotations

import json
from typing import ClassVar

from octavo.hookspecs import hookimpl
from octavo.spec import MessageDelta, ToolCallDelta, ToolParserEntry
from octavo.testing import ParserSample, ToolParserSuite


class Parser:
    """Character by character."""

    marks = "«", "»"
    suiting = True

    def __init__(self, tools):
        self.names = [tool["function"]["name"] for tool in tools]
        self.held, self.inside, self.num_calls = "", False, 0

    def push(self, text):
        content, calls = "", []
        for character in text:
            if self.inside and character != "»":
                calls += self.argument(character)
            elif self.inside:
                self.inside = False
                calls += self.end()
            elif character == ":" and self.is_name(self.held):
                calls += self.begin(self.held[1:])
                self.held, self.inside = "", True
            elif character == "«" or (self.held and character.isalpha()):
                if character == "«":
                    content += self.give_up()
                self.held += character
            else:
                content += self.give_up() + character
        return MessageDelta(content=content, tool_calls=tuple(calls))

    def flush(self):
        return MessageDelta(content=self.give_up())

    def is_name(self, held):
        return held[1:] in self.names

    def begin(self, name):
        self.num_calls += 1
        return [ToolCallDelta(self.num_calls - 1, name)]

    def argument(self, character):
        return [ToolCallDelta(self.num_calls - 1, arguments=character)]

    def end(self):
        return []

    def give_up(self):
        """What looked like the beginning of a call and is none."""
        held, self.held = self.held, ""
        return held


class Whole(Parser):
    """Waits for the end of the output."""

    def __init__(self, tools):
        super().__init__(tools)
        self.text = ""

    def push(self, text):
        self.text += text
        return MessageDelta()

    def flush(self):
        whole, self.text = super().push(self.text), ""
        return MessageDelta(content=whole.content + super().flush().content, tool_calls=whole.tool_calls)


class TakingPiecesForMarks(Parser):
    """Thinks that a mark comes alone, as a token would."""

    def push(self, text):
        if len(text) > 1 and not self.inside and not self.held:
            return MessageDelta(content=text)
        return super().push(text)


class Losing(Parser):
    """Drops what began like a call."""

    def give_up(self):
        self.held = ""
        return ""


class Doubling(Parser):
    """Says what it held back, and holds it on."""

    def give_up(self):
        return self.held


class Credulous(Parser):
    """Takes what is no call for one."""

    def is_name(self, held):
        return held[1:] in self.names or held in ("", "«")

    def begin(self, name):
        return super().begin(name or "unknown")


class Reordering(Parser):
    """Says what it held back when the next piece has come."""

    def push(self, text):
        late = self.give_up() if not text.isalpha() and not self.is_name(self.held) else ""
        delta = super().push(text)
        return MessageDelta(content=delta.content + late, tool_calls=delta.tool_calls)


class LateName(Parser):
    """Says the name when the call is over."""

    def begin(self, name):
        self.name = name
        super().begin(name)
        return []

    def end(self):
        return [ToolCallDelta(self.num_calls - 1, self.name)]


class Shared(Parser):
    """Has one state for all."""

    state: ClassVar[dict] = {}

    def __init__(self, tools):
        self.__dict__ = self.state
        super().__init__(tools)


class Unfaithful(Parser):
    """Tells plain messages from which its own calls cannot be read back."""

    marks = "<", ">"


class Blunt(Parser):
    """Suits nobody."""

    suiting = False


class Hurried(Parser):
    """Ends a call for good: what follows is lost."""

    def end(self):
        self.inside = True
        return []


def spell_out(messages, tools, marks):
    names = ", ".join(tool["function"]["name"] for tool in tools)
    told = [{"role": "system", "content": f"Tools: {names}"}] if tools else []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        spelt = "".join(f"{marks[0]}{call['name']}:{call['arguments']}{marks[1]}" for call in calls)
        content = message["content"] or ""
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        told.append({"role": "user" if message["role"] == "tool" else message["role"], "content": text + spelt})
    if tools and told[1]["role"] == "system":
        told[0]["content"] += "\n" + told.pop(1)["content"]
    return told


def plugin_of(parser):
    class Plugin:
        @hookimpl
        def octavo_register_tool_parsers(self):
            return [
                ToolParserEntry(
                    name="marked",
                    factory=parser,
                    suits=lambda template: parser.suiting and "«" in template,
                    spell_out=lambda messages, tools: spell_out(messages, tools, parser.marks),
                )
            ]

    return Plugin()


LIGHT = ("light", {"room": "kitchen", "levels": [1, 2, 3]})
CALL = f"«light:{json.dumps(LIGHT[1])}»"


class MarkedSuite(ToolParserSuite):
    samples = (
        ParserSample(CALL, calls=(LIGHT,)),
        ParserSample(f"On: {CALL}{CALL} done.", content="On:  done.", calls=(LIGHT, LIGHT)),
        ParserSample("«light on»", content="«light on»"),
    )
    templates = ("Say «name:arguments».",)


class TestRight(MarkedSuite):
    plugin = plugin_of(Parser)


class TestWhole(MarkedSuite):
    plugin = plugin_of(Whole)


class TestTakingPiecesForMarks(MarkedSuite):
    plugin = plugin_of(TakingPiecesForMarks)


class TestLosing(MarkedSuite):
    plugin = plugin_of(Losing)


class TestDoubling(MarkedSuite):
    plugin = plugin_of(Doubling)


class TestCredulous(MarkedSuite):
    plugin = plugin_of(Credulous)


class TestLateName(MarkedSuite):
    plugin = plugin_of(LateName)


class TestShared(MarkedSuite):
    plugin = plugin_of(Shared)


class TestUnfaithful(MarkedSuite):
    plugin = plugin_of(Unfaithful)


class TestBlunt(MarkedSuite):
    plugin = plugin_of(Blunt)


class TestHurried(MarkedSuite):
    plugin = plugin_of(Hurried)


class TestReordering(MarkedSuite):
    plugin = plugin_of(Reordering)
