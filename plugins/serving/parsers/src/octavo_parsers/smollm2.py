"""A conversation about tools told to SmolLM2, whose chat template knows nothing but roles and texts.

It was trained on tools between `<tools>` marks in the system message and answers with a list of calls between
`<tool_call>` marks (model card of SmolLM2-1.7B-Instruct, "Function calling"); results come from the user.
Owns: `spell_out`. Must never know: how its answers are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.spec import Message, Tool

INSTRUCTIONS = """\
You are an expert in calling functions. For each question, call one or more of the functions below to get what you need.
If no function fits the question, or it does not give a parameter that a function needs, say so.

You have access to the following tools:
<tools>{tools}</tools>

To call functions, write nothing but a list of calls in the format below, with parameters of the right type. \
If no call is needed, write an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
(further calls)
]</tool_call>"""


def spell_out(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The same conversation in messages that have nothing but role and content.

    Contents stay what they are, a text or a list of text parts; those that something is added to become lists of parts.
    Raises `InvalidRequestError` (field `messages`) for calls that are not in OpenAI's form.
    """
    told = [_told(message) for message in messages]
    if tools:
        instructions = INSTRUCTIONS.format(tools=json.dumps(list(tools), ensure_ascii=False))
        if not told or told[0]["role"] not in ("system", "developer"):
            told.insert(0, {"role": "system", "content": instructions})
        else:
            told[0]["content"] = [_part(instructions + "\n"), *_parts(told[0]["content"])]
    return told


def _told(message: Message) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return {"role": "user", "content": [_part("<tool_response>"), *_parts(content), _part("</tool_response>")]}
    if calls := message.get("tool_calls"):
        spelt = ",\n".join(_spelt(call) for call in calls)
        return {"role": role, "content": [*_parts(content), _part(f"<tool_call>[\n{spelt}\n]</tool_call>")]}
    return {"role": role, "content": "" if content is None else content}


def _spelt(call: Any) -> str:
    """A call as the model writes it."""
    match call:
        case {"function": {"name": str(name), **rest}}:
            arguments = rest.get("arguments") or {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}'
    raise InvalidRequestError("messages", 'each of tool_calls must be {"function": {"name": …, "arguments": …}}')


def _parts(content: Any) -> list[Any]:
    """A content as parts, which chat templates get as lines of one text."""
    if not content:
        return []
    return list(content) if isinstance(content, list | tuple) else [_part(content)]


def _part(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": text}
