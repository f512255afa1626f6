"""Laws of all parsers: the cut does not matter, nothing is lost or doubled, plain text stays plain and comes at once.

Owns: `MessageParserSuite`. Must never know: formats, calls of tools.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from octavo.spec import MessageParser
from octavo.testing.suites.parser_samples import PLAIN, Message, ParserSample, cuttings, damaged, parse
from octavo.testing.suites.subject import PluginSuite

WORDS = ("zqx", "jvk")
"""Put into texts to see where they come out."""
LAG = 40
"""Most characters that are held back: a mark that may have begun."""


class MessageParserSuite(PluginSuite):
    """What suites of tool parsers and of reasoning parsers share; see `octavo.testing.suites`."""

    samples: Sequence[ParserSample] = ()
    plain: Sequence[str] = PLAIN
    templates: Sequence[str] = ()
    keeps_all: bool = True
    """Whether all text comes out, marks and the white space next to them left out."""

    def parser(self, prompt: str = "") -> MessageParser:
        """A new parser for one completion."""
        raise NotImplementedError

    def check(self, message: Message) -> None:
        """Raises `AssertionError` for what a parser of the kind never makes."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        assert self.samples, "set `samples` to some outputs in the parser's format"
        if "sample" in metafunc.fixturenames:
            metafunc.parametrize("sample", self.samples, ids=lambda sample: sample.text[:24])
        if "text" in metafunc.fixturenames:
            metafunc.parametrize("text", self.plain, ids=lambda text: repr(text[:16]))

    def parsed(self, pieces: Sequence[str], prompt: str = "") -> Message:
        message = parse(self.parser(prompt), pieces)
        self.check(message)
        return message

    def _harmed(self, sample: ParserSample, count: int) -> Iterator[str]:
        yield sample.text
        yield from damaged(sample.text, random.Random(sample.text), count)

    # Laws

    def test_samples_are_taken_apart(self, sample: ParserSample) -> None:
        message = self.parsed([sample.text], sample.prompt)
        assert (message.content, message.reasoning) == (sample.content, sample.reasoning)
        assert [name for name, _ in message.calls] == [name for name, _ in sample.calls]

    def test_the_cut_does_not_matter(self, sample: ParserSample) -> None:
        """Nor in texts that are broken anywhere; whatever they are, nothing is raised."""
        rng = random.Random(sample.text)
        for text in self._harmed(sample, 60):
            whole = self.parsed([text], sample.prompt)
            for pieces in cuttings(text, rng):
                assert self.parsed(pieces, sample.prompt) == whole, f"in the pieces {pieces}"

    def test_plain_text_comes_out_as_it_is(self, text: str) -> None:
        for pieces in cuttings(text, random.Random(text)):
            assert self.parsed(pieces) == Message(content=text), f"in the pieces {pieces}"

    def test_plain_text_is_not_held_back(self) -> None:
        parser, message = self.parser(), Message()
        for num_pushed, character in enumerate("Plain words, one after the other; and on it goes. " * 8, start=1):
            message.add(parser.push(character))
            assert len(message.content) >= num_pushed - LAG, f"{num_pushed - len(message.content)} characters are held"

    def test_what_is_put_in_comes_out_once_and_in_order(self, sample: ParserSample) -> None:
        """Two words, wherever in the text they stand, and also if the text ends with the second."""
        rng = random.Random(sample.text)
        for place in range(len(sample.text) + 1):
            behind = rng.randint(place, len(sample.text))
            begun = sample.text[:place] + WORDS[0] + sample.text[place:behind] + WORDS[1]
            for text in (begun, begun + sample.text[behind:]):
                message = self.parsed([text], sample.prompt)
                for word in WORDS:
                    count = sum(channel.count(word) for channel in message.channels)
                    assert count <= 1, f"{word!r} of {text!r} comes out {count} times"
                    assert count == 1 or not self.keeps_all, f"{word!r} of {text!r} is lost"
                for channel in message.channels:
                    found = [channel.find(word) for word in WORDS]
                    assert -1 in found or found == sorted(found), f"{text!r} comes out in another order"

    def test_flushing_twice_adds_nothing(self, sample: ParserSample) -> None:
        for text in self._harmed(sample, 20):
            parser = self.parser(sample.prompt)
            message = parse(parser, [text])
            before = (message.channels, len(message.calls))
            message.add(parser.flush())
            assert (message.channels, len(message.calls)) == before, f"after {text!r}"

    def test_parsers_share_nothing(self, sample: ParserSample) -> None:
        texts = [(s.prompt, t) for s in (sample, *self.samples) for t in self._harmed(s, 1)]
        parsers, messages = [self.parser(prompt) for prompt, _ in texts], [Message() for _ in texts]
        for place in range(max(len(text) for _, text in texts)):
            for parser, message, (_, text) in zip(parsers, messages, texts, strict=True):
                message.add(parser.push(text[place : place + 1]))
        for parser, message, (prompt, text) in zip(parsers, messages, texts, strict=True):
            message.add(parser.flush())
            assert message == self.parsed([text], prompt)

    def test_it_tells_which_templates_it_suits(self) -> None:
        entry = self.offer.entry
        assert all(entry.suits(template) is True for template in self.templates)
        assert all(entry.suits(text) in (True, False) for text in ("", "{{ messages", *self.plain))
