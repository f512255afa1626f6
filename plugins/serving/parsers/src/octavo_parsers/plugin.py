"""What this plugin offers, and which chat templates it suits. Owns: those. Must never know: how text is taken apart."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import ReasoningParserEntry, ToolParserEntry


def suits_hermes(chat_template: str) -> bool:
    """Some templates have the same mark for calls that are no JSON: those name parameters in tags."""
    return "<tool_call>" in chat_template and not any(tag in chat_template for tag in ("<function=", "<arg_key>"))


def suits_smollm2(chat_template: str) -> bool:
    return "named SmolLM" in chat_template and "tool" not in chat_template


def suits_llama3_json(chat_template: str) -> bool:
    return "<|python_tag|>" in chat_template or '"parameters": dictionary' in chat_template


def suits_think(chat_template: str) -> bool:
    return "</think>" in chat_template


@hookimpl
def octavo_register_tool_parsers() -> list[ToolParserEntry]:
    return [
        ToolParserEntry(name="hermes", factory="octavo_parsers.tagged:parser", suits=suits_hermes),
        ToolParserEntry(
            name="smollm2",
            factory="octavo_parsers.tagged:parser",
            suits=suits_smollm2,
            spell_out="octavo_parsers.smollm2:spell_out",
        ),
        ToolParserEntry(
            name="llama3_json",
            factory="octavo_parsers.llama3:parser",
            suits=suits_llama3_json,
            keep_special_tokens=True,
        ),
    ]


@hookimpl
def octavo_register_reasoning_parsers() -> list[ReasoningParserEntry]:
    return [ReasoningParserEntry(name="think", factory="octavo_parsers.think:parser", suits=suits_think)]
