"""Whatever is said: calls that were written are read, the cut never matters, nothing is raised, little is held."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.spec import MessageParser
from octavo.testing.suites.parser_samples import Message, parse
from octavo_parsers import llama3, tagged, think

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "get_weather", "größer")]
MAKERS: dict[str, Callable[[], MessageParser]] = {
    "tagged": lambda: tagged.parser(TOOLS),
    "llama3": lambda: llama3.parser(TOOLS),
    "think": lambda: think.parser("Go."),
    "think inside": lambda: think.parser("Go.<think>\n"),
}
FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<", ">", "</", "<tool", "_call>"),
    *('{"name": "f", "arguments": ', '{"name": "f", "parameters": {', '{"name": "f"}', '"name"', '"arguments"', '"f"'),
    *(
        '{"a": "<tool_call>\\"}"}',
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        ";",
        '"',
        "\\",
        "\\u00e9",
        "\\ud800",
        "null",
        "12",
        "'",
    ),
    *(" ", "\n", "\u00a0", "word", "é", "😀", "\ud800"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=16).map("".join) | st.text(max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
calls = st.tuples(
    st.sampled_from(["f", "get_weather", "größer"]), st.dictionaries(st.text(max_size=6), values, max_size=4)
)
spellings = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.none() | st.integers(0, 3),
        "separators": st.none() | st.just((",", ":")),
    }
)
prose = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20)


def cut(text: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def read_calls(message: Message) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in message.calls]


@pytest.mark.parametrize("kind", MAKERS)
@settings(deadline=None)
@given(text=texts, places=st.lists(st.integers(0, 1000), max_size=12))
def test_any_text_in_any_pieces(kind: str, text: str, places: list[int]) -> None:
    whole = parse(MAKERS[kind](), [text])
    assert parse(MAKERS[kind](), cut(text, places)) == whole
    assert parse(MAKERS[kind](), text) == whole
    said = "".join(whole.channels)
    assert len(said) <= len(text) + 2 * len(whole.calls), "something is said twice"  # {} where there are no arguments


@settings(deadline=None)
@given(said=st.lists(st.tuples(prose, calls, spellings), max_size=4), places=st.lists(st.integers(0, 1000), max_size=8))
def test_tagged_calls_are_read(said: list[Any], places: list[int]) -> None:
    text = "".join(
        f"{before}<tool_call>{json.dumps({'name': name, 'arguments': arguments}, **spelling)}</tool_call>"
        for before, (name, arguments), spelling in said
    )
    message = parse(tagged.parser(TOOLS), cut(text, places))
    assert read_calls(message) == [call for _, call, _ in said]
    content = "".join(before for before, _, _ in said).rstrip()
    begins_with_call = bool(said) and not said[0][0].strip()
    assert message.content == (content.lstrip() if begins_with_call else content)


@settings(deadline=None)
@given(said=st.lists(calls, max_size=4), spelling=spellings, places=st.lists(st.integers(0, 1000), max_size=8))
def test_lists_of_calls_are_read(said: list[Any], spelling: dict[str, Any], places: list[int]) -> None:
    written = json.dumps([{"name": name, "arguments": arguments} for name, arguments in said], **spelling)
    message = parse(tagged.parser(TOOLS), cut(f"<tool_call>{written}</tool_call>", places))
    assert (read_calls(message), message.content) == (said, "")


@settings(deadline=None)
@given(
    said=st.lists(st.tuples(calls, spellings), min_size=1, max_size=4),
    behind=prose,
    is_tagged=st.booleans(),
    places=st.lists(st.integers(0, 1000), max_size=8),
)
def test_llama_calls_are_read(said: list[Any], behind: str, is_tagged: bool, places: list[int]) -> None:
    written = [json.dumps({"name": name, "parameters": given}, **spelling) for (name, given), spelling in said]
    text = llama3.TAG * is_tagged + "; ".join(written) + "." + behind
    message = parse(llama3.parser(TOOLS), cut(text, places))
    assert read_calls(message) == [call for call, _ in said]
    assert message.content == "." + behind


@settings(deadline=None)
@given(reasoning=prose, answer=st.text(max_size=20), starts_inside=st.booleans())
def test_reasoning_is_set_apart(reasoning: str, answer: str, starts_inside: bool) -> None:
    text = "<think>" * (not starts_inside) + f"{reasoning}</think>{answer}"
    message = parse(think.parser("Go." + "<think>" * starts_inside), [text])
    assert (message.reasoning, message.content) == (reasoning.strip(), answer.lstrip())


@pytest.mark.parametrize(
    "text",
    [
        "plain words and <b>tags</b> " * 500,
        '<tool_call>{"name": "f", "arguments": {"text": "' + "long \\n words, " * 500 + '"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + '{"a": [' * 500 + "]}" * 500 + "}</tool_call>",
        '{"name": "f", "parameters": {"text": "' + "<|python_tag|" * 500 + '"}}',
        "<think>" + "</thin" * 500,
        "<tool_call>" + "{" * 2000,
        " \n" * 2000 + "<think>",
    ],
)
@pytest.mark.parametrize("kind", MAKERS)
def test_no_more_waits_to_be_read_than_a_mark(kind: str, text: str) -> None:
    """What was read is not read again: so the work is linear in the text."""
    parser: Any = MAKERS[kind]()
    rng = random.Random(text[:40])
    start = 0
    while start < len(text):
        end = start + rng.randint(1, 6)
        parser.push(text[start:end])
        assert len(parser._incoming._text) - parser._incoming._at < len(llama3.TAG)
        start = end


def test_of_plain_text_nothing_is_kept() -> None:
    for kind, make in MAKERS.items():
        parser: Any = make()
        for _ in range(300):
            parser.push("a < b ")
            assert parser._incoming._kept is None, kind
