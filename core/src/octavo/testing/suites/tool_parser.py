"""Laws of tool parsers: those of all parsers, calls with a name and streamed arguments, conversations that parse back.

Owns: `ToolParserSuite`. Must never know: formats.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from octavo.spec import MessageParser, load_factory
from octavo.testing.suites.message_parser import MessageParserSuite
from octavo.testing.suites.parser_samples import Message, ParserSample

RESULT = "It is 21 °C."


class ToolParserSuite(MessageParserSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "tool_parsers"

    streams_arguments: bool = True

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """What requests offer; by default the tools that samples call."""
        names = dict.fromkeys(name for sample in self.samples for name, _ in sample.calls)
        schema = {"type": "object", "properties": {}}
        return [
            {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": schema}}
            for name in names
        ]

    def parser(self, prompt: str = "") -> MessageParser:
        return self.offer.make(self.tools)

    def check(self, message: Message) -> None:
        assert not message.reasoning, "reasoning is for reasoning parsers"

    # Laws

    def test_arguments_are_those_that_were_spoken(self, sample: ParserSample) -> None:
        message = self.parsed([sample.text])
        assert [json.loads(arguments) for _, arguments in message.calls] == [dict(given) for _, given in sample.calls]

    def test_arguments_come_as_they_are_spoken(self) -> None:
        if not self.streams_arguments:
            pytest.skip("it declares that arguments come at their end")
        pieces = []
        for sample in self.samples:
            parser = self.parser()
            deltas = [call for character in sample.text for call in parser.push(character).tool_calls]
            pieces += [sum(d.index == i and bool(d.arguments) for d in deltas) for i in range(len(sample.calls))]
        assert max(pieces, default=0) > 4, "no sample's arguments come in more than 4 pieces; is one of them longer?"

    @pytest.mark.parametrize("with_system", [True, False])
    def test_a_conversation_told_in_plain_messages_parses_back(self, sample: ParserSample, with_system: bool) -> None:
        entry = self.offer.entry
        if entry.spell_out is None:
            pytest.skip("its format is that of templates that know tools")
        messages, tools = self._conversation(sample, with_system), self.tools
        given = copy.deepcopy((messages, tools))
        told = load_factory(entry.spell_out)(messages, tools)
        assert (messages, tools) == given, "what it was given has changed"
        assert all(not message.get("tool_calls") for message in told)
        assert {message["role"] for message in told} <= {"system", "user", "assistant"}
        texts = [_text(message.get("content")) for message in told]
        assert told[0]["role"] == "system"
        assert all(tool["function"]["name"] in texts[0] for tool in tools)
        assert all(any(said in text for text in texts) for said in ("What", RESULT, *(["Be brief."] * with_system)))
        answers = [self.parsed([t]) for t, m in zip(texts, told, strict=True) if m["role"] == "assistant"]
        calls = [(name, json.loads(arguments)) for answer in answers for name, arguments in answer.calls]
        assert calls == [(name, dict(arguments)) for name, arguments in sample.calls]

    def test_without_tools_a_conversation_is_what_it_was(self) -> None:
        if self.offer.entry.spell_out is None:
            pytest.skip("its format is that of templates that know tools")
        messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
        told = load_factory(self.offer.entry.spell_out)(messages, ())
        assert [(m["role"], _text(m["content"])) for m in told] == [(m["role"], m["content"]) for m in messages]

    @staticmethod
    def _conversation(sample: ParserSample, with_system: bool) -> list[dict[str, Any]]:
        calls = [
            {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(sample.calls)
        ]
        return [
            *([{"role": "system", "content": "Be brief."}] * with_system),
            {"role": "user", "content": [{"type": "text", "text": "What is the weather?"}]},
            {"role": "assistant", "content": sample.content or None, **({"tool_calls": calls} if calls else {})},
            *({"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls),
            *([] if calls else [{"role": "user", "content": RESULT}]),
        ]


def _text(content: Any) -> str:
    """A message's content as one text, as chat templates get it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)
