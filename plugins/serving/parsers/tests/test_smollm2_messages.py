"""Conversations about tools, as SmolLM2's chat template gets them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo_parsers.smollm2 import spell_out

TOOL = {"type": "function", "function": {"name": "grüßen", "parameters": {"type": "object", "properties": {}}}}
ASKED = {"role": "user", "content": "Greet me."}


def call(arguments: Any, name: Any = "grüßen") -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_stand_in_front_of_what_the_system_message_says(role: str) -> None:
    alone = spell_out([ASKED], [TOOL])
    assert [message["role"] for message in alone] == ["system", "user"]
    assert alone[1] == ASKED
    assert '<tools>[{"type": "function", "function": {"name": "grüßen"' in text(alone[0])
    for content in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        with_system = spell_out([{"role": role, "content": content}, ASKED], [TOOL])
        assert [message["role"] for message in with_system] == [role, "user"]
        assert text(with_system[0]) == text(alone[0]) + "\n\nBe brief."


@pytest.mark.parametrize("arguments", [{"to": "Ana"}, '{"to": "Ana"}'])
def test_calls_and_results_are_told_in_the_models_format(arguments: Any) -> None:
    messages = [
        ASKED,
        {"role": "assistant", "content": "Yes:", "tool_calls": [call(arguments), call(None), call("")]},
        {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": "¡Hola!"}]},
        {"role": "assistant", "content": None},
    ]
    told = spell_out(messages, ())
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant"]
    greeting, nothing = '{"name": "grüßen", "arguments": {"to": "Ana"}}', '{"name": "grüßen", "arguments": {}}'
    assert text(told[1]) == f"Yes:\n<tool_call>[\n{greeting},\n{nothing},\n{nothing}\n]</tool_call>"
    assert text(told[2]) == "<tool_response>\n¡Hola!\n</tool_response>"
    assert told[3] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("broken", [3, {}, {"function": None}, call({}, name=None), {"function": {"arguments": {}}}])
def test_calls_in_another_form_are_refused(broken: Any) -> None:
    with pytest.raises(InvalidRequestError, match="each of tool_calls must be") as caught:
        spell_out([{"role": "assistant", "content": "", "tool_calls": [broken]}], [TOOL])
    assert caught.value.field == "messages"
