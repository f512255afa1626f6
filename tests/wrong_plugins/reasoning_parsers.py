"""A reasoning parser as it should be, and ones that are each wrong in one way, under their suite.

Reasoning is written as `‹reasoning›`, at the start of the output.
"""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import MessageDelta, ReasoningParserEntry, ToolCallDelta
from octavo.testing import ParserSample, ReasoningParserSuite


class Parser:
    """Marks are single characters, so nothing need be held back."""

    def __init__(self, prompt):
        self.part = "reasoning" if prompt.endswith("‹") else "start"

    def push(self, text):
        reasoning, content = "", ""
        if self.part == "start" and text:
            self.part = "reasoning" if text.startswith("‹") else "content"
            text = text.removeprefix("‹")
        if self.part == "reasoning":
            reasoning, mark, text = text.partition("›")
            self.part = "content" if mark else "reasoning"
        if self.part == "content":
            content = text
        return self.delta(reasoning, content)

    def delta(self, reasoning, content):
        return MessageDelta(reasoning=reasoning, content=content)

    def flush(self):
        return MessageDelta()


class PromptBlind(Parser):
    """Never starts inside."""

    def __init__(self, prompt):
        super().__init__("")


class AlwaysInside(Parser):
    """Always starts inside."""

    def __init__(self, prompt):
        super().__init__("‹")


class Patient(Parser):
    """Waits for the end of the reasoning, and loses one that has none."""

    def __init__(self, prompt):
        super().__init__(prompt)
        self.held = ""

    def push(self, text):
        delta = super().push(text)
        self.held += delta.reasoning
        reasoning, self.held = (self.held, "") if self.part == "content" else ("", self.held)
        return MessageDelta(reasoning=reasoning, content=delta.content)


class Anywhere(Parser):
    """Takes marks for marks wherever they stand."""

    def push(self, text):
        joined = [super(Anywhere, self).push(piece) for piece in self.pieces(text)]
        return MessageDelta(reasoning="".join(d.reasoning for d in joined), content="".join(d.content for d in joined))

    def pieces(self, text):
        for character in text:
            if character == "‹":
                self.part = "start"
            yield character


class Calling(Parser):
    """Makes calls of tools, too."""

    def delta(self, reasoning, content):
        calls = (ToolCallDelta(0, "look"),) if "even" in content else ()
        return MessageDelta(reasoning=reasoning, content=content, tool_calls=calls)


def plugin_of(parser):
    class Plugin:
        @hookimpl
        def octavo_register_reasoning_parsers(self):
            return [ReasoningParserEntry(name="marked", factory=parser, suits=lambda template: "›" in template)]

    return Plugin()


class MarkedSuite(ReasoningParserSuite):
    samples = (
        ParserSample("‹Both are even.›Yes, even.", reasoning="Both are even.", content="Yes, even."),
        ParserSample("Both are even.›Yes.", reasoning="Both are even.", content="Yes.", prompt="Well? ‹"),
        ParserSample("‹It was cut off", reasoning="It was cut off"),
        ParserSample("Marks: ‹ and ›.", content="Marks: ‹ and ›."),
    )
    templates = ("split('›')",)


class TestRight(MarkedSuite):
    plugin = plugin_of(Parser)


class TestPromptBlind(MarkedSuite):
    plugin = plugin_of(PromptBlind)


class TestAlwaysInside(MarkedSuite):
    plugin = plugin_of(AlwaysInside)


class TestPatient(MarkedSuite):
    plugin = plugin_of(Patient)


class TestAnywhere(MarkedSuite):
    plugin = plugin_of(Anywhere)


class TestCalling(MarkedSuite):
    plugin = plugin_of(Calling)
