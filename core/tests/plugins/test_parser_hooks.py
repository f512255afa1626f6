"""Tool and reasoning parsers: how they are registered, and which one suits a model."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig
from octavo.errors import PluginError
from octavo.plugins import load_extensions, survey

TOOLS = "@hookimpl\ndef octavo_register_tool_parsers():\n    return [{}]\n"
REASONING = "@hookimpl\ndef octavo_register_reasoning_parsers():\n    return [{}]\n"


def tool_parser(name: str, word: str, priority: int = 0) -> str:
    suits = f"lambda template: {word!r} in template"
    return f"ToolParserEntry(name={name!r}, factory=list, suits={suits}, priority={priority})"


def test_both_kinds_are_on_offer(site) -> None:
    site.add(
        "mine",
        TOOLS.format(tool_parser("calls", "<call>"))
        + REASONING.format("ReasoningParserEntry(name='muse', factory=str, suits=str.isupper)"),
    )
    extensions = load_extensions(EngineConfig())
    assert extensions.tool_parsers.find("calls").make(("a tool",)) == ["a tool"]
    assert extensions.reasoning_parsers.find("muse").make("prompt") == "prompt"
    assert extensions.tool_parsers["calls"].entry.spell_out is None
    with pytest.raises(PluginError, match=r"no tool parser is called 'call'; did you mean 'calls'\?"):
        extensions.tool_parsers.find("call")
    (report,) = (report for report in survey(EngineConfig()).plugins() if report.name == "mine")
    assert [(offer.kind, offer.name) for offer in report.offers] == [
        ("tool parser", "calls"),
        ("reasoning parser", "muse"),
    ]


def test_the_highest_that_suits_is_taken(site) -> None:
    entries = [tool_parser("any", ""), tool_parser("call", "<call>", 10), tool_parser("func", "<func>", 20)]
    site.add("mine", TOOLS.format(", ".join(entries)))
    extensions = load_extensions(EngineConfig())
    for template, name in (("", "any"), ("say <call>", "call"), ("<call> <func>", "func")):
        offer = extensions.suiting(extensions.tool_parsers, template)
        assert offer is not None
        assert offer.entry.name == name
    assert extensions.suiting(extensions.reasoning_parsers, "") is None


def test_a_parser_that_cannot_tell_is_named(site) -> None:
    site.add("mine", REASONING.format("ReasoningParserEntry(name='muse', factory=str, suits=lambda t: 1 / 0)"))
    extensions = load_extensions(EngineConfig())
    with pytest.raises(PluginError, match=r"plugin mine \(dist-mine 1.0\) cannot tell whether reasoning parser 'muse'"):
        extensions.suiting(extensions.reasoning_parsers, "")
