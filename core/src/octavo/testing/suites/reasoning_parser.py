"""Laws of reasoning parsers: those of all parsers, and that they leave calls of tools to others.

Owns: `ReasoningParserSuite`. Must never know: formats.
"""

from __future__ import annotations

from typing import ClassVar

from octavo.spec import MessageParser
from octavo.testing.suites.message_parser import MessageParserSuite
from octavo.testing.suites.parser_samples import Message


class ReasoningParserSuite(MessageParserSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "reasoning_parsers"

    def parser(self, prompt: str = "") -> MessageParser:
        return self.offer.make(prompt)

    def check(self, message: Message) -> None:
        assert not message.calls, "calls of tools are for tool parsers"

    # Laws

    def test_some_sample_has_reasoning_and_an_answer(self) -> None:
        assert any(sample.reasoning and sample.content for sample in self.samples)

    def test_reasoning_comes_as_it_is_spoken(self) -> None:
        pieces = []
        for sample in self.samples:
            parser = self.parser(sample.prompt)
            pieces.append(sum(bool(parser.push(character).reasoning) for character in sample.text))
        assert max(pieces) > 4, "no sample's reasoning comes in more than 4 pieces; is one of them longer?"
