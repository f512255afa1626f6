"""What each format forgives, where it breaks off, and how it streams."""

from __future__ import annotations

import pytest

from octavo.spec import MessageDelta, ToolCallDelta
from octavo.testing.suites.parser_samples import Message, parse
from octavo_parsers import llama3, tagged, think
from octavo_parsers.plugin import octavo_register_reasoning_parsers, octavo_register_tool_parsers

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_calls_stream_token_by_token() -> None:
    parser = tagged.parser(TOOLS)
    pieces = ("Well. ", "<tool", '_call>{"name', '": "f", ', '"arguments": ', '{"a"', ": 1", "}}</tool_call", "> Bye")
    assert [parser.push(piece) for piece in pieces] == [
        MessageDelta(content="Well."),
        MessageDelta(),
        MessageDelta(),
        MessageDelta(),
        MessageDelta(),
        MessageDelta(tool_calls=(ToolCallDelta(0, "f", '{"a"'),)),
        MessageDelta(tool_calls=(ToolCallDelta(0, None, ": 1"),)),
        MessageDelta(tool_calls=(ToolCallDelta(0, None, "}"),)),
        MessageDelta(content="  Bye"),
    ]
    assert parser.flush() == MessageDelta()


def test_calls_in_one_piece_are_told_one_by_one() -> None:
    given = ['{"a": 0}', '{"b": []}', "{}"]
    text = "".join(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>' for arguments in given)
    calls = tuple(ToolCallDelta(i, "f", arguments) for i, arguments in enumerate(given))
    assert tagged.parser(TOOLS).push(text) == MessageDelta(tool_calls=calls)


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('{"name": "f", "parameters": {}}', "{}"),
        ('{"type": "function", "id": 3, "name": "f", "arguments": {"a": 1}, "more": [{}]}', '{"a": 1}'),
        ('{"more": [{}], "arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"arguments": null, "name": "f"}', "{}"),
        ('{"name": "f", "arguments": [1]}', "[1]"),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}', '{"a": "é"}'),
        ('{"name": "f", "arguments": "Rome"}', '"Rome"'),
        ('{"name": "f", "arguments": "{\\ud800}"}', '"{\\ud800}"'),
        ('{"name": "\\u0066", "arguments": {}, "name": "g", "arguments": {"b": 2}}', "{}"),
        ('{"name": "f", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": [1', '{"a": [1'),
        ('{"name": "f", "arguments": {\'a\': 1}}', "{'a': 1}"),
        ('\n[ {"name": "f", "arguments": {}}\n ]\n', "{}"),
    ],
)
def test_forgiven(inside: str, arguments: str) -> None:
    text = f"So:\n<tool_call>{inside}</tool_call>\nThen."
    message = parse(tagged.parser(TOOLS), [text])
    assert message == Message(content="So:\n\nThen.", calls=[("f", arguments)])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": null, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "argumints": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", arguments: {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ?}</tool_call>',
        "<tool_call>f(1)</tool_call>",
        '<tool_call>{"name": "f", "argu',
        '<tool_call>{"name": "f", "arguments": "{',
        "<tool_call>[[]]</tool_call>",
        "<tool_call> ",
        "<tool_ca",
        "</tool_call>",
    ],
)
def test_no_call(text: str) -> None:
    assert parse(tagged.parser(TOOLS), [f"So: {text}"]) == Message(content=f"So: {text}")
    assert parse(tagged.parser(TOOLS), [f"So: {text} "]) == Message(content=f"So: {text} ")


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('{"name": "f", "arguments": {"a": "b', '{"a": "b', ""),
        ('{"name": "f", "arguments": {"a": 1}}} </tool_call>', '{"a": 1}', "} </tool_call>"),
        ('{"name": "f", "arguments": {"a": 1}, oh}</tool_call>', '{"a": 1}', ", oh}</tool_call>"),
        ('{"name": "f", "arguments": {"a": 1}}, oh</tool_call>', '{"a": 1}', ", oh</tool_call>"),
        ('[{"name": "f", "arguments": {"a": 1}}]', '{"a": 1}', ""),
    ],
)
def test_a_call_that_breaks_off_behind_its_beginning(text: str, arguments: str, content: str) -> None:
    message = parse(tagged.parser(TOOLS), [f"<tool_call>{text}"])
    assert message == Message(content=content, calls=[("f", arguments)])


def test_a_bad_call_does_not_keep_others_from_being_read() -> None:
    good, bad = '<tool_call>{"name": "f", "arguments": {}}</tool_call>', '<tool_call>{"name": 1}</tool_call>'
    message = parse(tagged.parser(TOOLS), [bad + good + bad + good])
    assert message == Message(content=bad + bad, calls=[("f", "{}"), ("f", "{}")])
    assert parse(tagged.parser(TOOLS), ["<tool_call>" + good]).calls == [("f", "{}")]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('\n{"name": "f", "parameters": {}}', "", [("f", "{}")]),
        ('{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('{"name": "f", "parameters": {}};', "", [("f", "{}")]),
        ('{"name": "f", "parameters": {}}; or so', "; or so", [("f", "{}")]),
        ('{"name": "g", "parameters": {}}', '{"name": "g", "parameters": {}}', []),
        ('<|python_tag|>{"name": "g", "parameters": {}}', "", [("g", "{}")]),
        ('<|python_tag|>{"name": "g"}<|python_tag|> {"name": "h"}', "", [("g", "{}"), ("h", "{}")]),
        ('Try {"name": "f", "parameters": {}}', 'Try {"name": "f", "parameters": {}}', []),
        ('Try <|python_tag|>{"name": "f", "parameters": {}} now', "Try  now", [("f", "{}")]),
        ("<|python_tag|>x = 1\n", "<|python_tag|>x = 1\n", []),
        ('<|python_tag|>x<|python_tag|>{"name": "f"}', "<|python_tag|>x", [("f", "{}")]),
        ('{"answer": 42}', '{"answer": 42}', []),
        ('{"name": "f", "parameters": {"a": 1', "", [("f", '{"a": 1')]),
    ],
)
def test_llama(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse(llama3.parser(TOOLS), [text]) == Message(content=content, calls=calls)


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("", "<thinking>Hm.</thinking>", "", "<thinking>Hm.</thinking>"),
        ("", "Hm.</think>Yes.", "", "Hm.</think>Yes."),
        ("user: <think> is a mark\nassistant: ", "Hm.</think>Yes.", "", "Hm.</think>Yes."),
        ("assistant: <think>\n\n", "Hm.</think> Yes.</think> ", "Hm.", "Yes.</think> "),
        ("assistant: <think>", "<think>Hm.", "Hm.", ""),
        ("assistant: <think>", "Hm. <think> </think>", "Hm. <think>", ""),
        ("", "<think>Hm.\n", "Hm.\n", ""),
    ],
)
def test_think(prompt: str, text: str, reasoning: str, content: str) -> None:
    assert parse(think.parser(prompt), [text]) == Message(reasoning=reasoning, content=content)


QWEN3 = "{% if tools %}<tool_call>{% endif %}{{ content.split('</think>') }}"
QWEN3_CODER = "<tool_call>\n<function=name>\n<parameter=key>"
SMOLLM2 = "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>' }}"
SMOLLM3 = SMOLLM2 + "{% if xml_tools %}<tool_call>{% endif %}<think>\n\n</think>"


@pytest.mark.parametrize(
    ("template", "suiting"),
    [
        ("{{ messages }}", set()),
        (QWEN3, {"hermes", "think"}),
        (QWEN3_CODER, set()),
        (SMOLLM2, {"smollm2"}),
        (SMOLLM3, {"hermes", "think"}),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', {"llama3_json"}),
        ("{{- '<|python_tag|>' }}", {"llama3_json"}),
    ],
)
def test_each_template_has_its_parsers(template: str, suiting: set[str]) -> None:
    entries = [*octavo_register_tool_parsers(), *octavo_register_reasoning_parsers()]
    assert {entry.name for entry in entries if entry.suits(template)} == suiting
