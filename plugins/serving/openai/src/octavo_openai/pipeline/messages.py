"""Chat messages as clients write them, made into what chat templates expect.

Owns: roles, histories of tool calls, continued messages. Must never know: sampling, parsers, what answers look like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo import AsyncLLM, TokensPrompt
from octavo.errors import InvalidRequestError
from octavo.spec import Message, Tool
from octavo_openai.pipeline.prompts import need_tokenizer

_TAKEN = frozenset({"self", "messages", "tools", "add_generation_prompt"})
"""Variables with a place of their own."""
_END = "\ue000octavo\ue001"
"""Marks where a continued message ends; no text has these private characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    """None: yes, unless a message is continued."""
    continue_final_message: bool = False
    """The answer goes on where the last message, the assistant's, ends."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The template's own variables."""


async def render_prompt(
    llm: AsyncLLM, messages: Sequence[Message], tools: Sequence[Tool], rendering: Rendering
) -> TokensPrompt:
    """The prompt for `make_request`: text and token ids. Raises `InvalidRequestError` (field `messages`)."""
    template = need_tokenizer(llm).chat_template or ""
    prepared = [_prepared(message, template) for message in messages]
    continues = rendering.continue_final_message
    if continues and rendering.add_generation_prompt:
        raise InvalidRequestError("continue_final_message", "and add_generation_prompt exclude each other")
    if taken := sorted(_TAKEN.intersection(rendering.variables)):
        raise InvalidRequestError("chat_template_kwargs", f"{', '.join(taken)} cannot be set there")
    variables = dict(rendering.variables)
    if tools:
        variables["tools"] = list(tools)
    if continues:
        _mark_end(prepared)
    opens = not continues if rendering.add_generation_prompt is None else rendering.add_generation_prompt
    prompt = await llm.render_chat(prepared, add_generation_prompt=opens, **variables)
    if not continues:
        return prompt
    text, mark, _ = (prompt.get("prompt") or "").rpartition(_END)
    if not mark:
        raise InvalidRequestError("continue_final_message", "the model's chat template leaves the last message out")
    return {"prompt": text, "prompt_token_ids": await llm.encode(text, add_special_tokens=False)}


def tells_of_calls(messages: Sequence[Message]) -> bool:
    """Whether tools were called in them."""
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def tell_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The same conversation in plain messages, for models that were trained on no form of their own.

    Calls look as the grammar of forced calls wants them.
    """
    functions = [msgspec.json.encode(tool["function"]).decode() for tool in tools]
    told = "\n".join(["Functions that you can call with a JSON list of their names and arguments:", *functions])
    plain = [_with_written_calls(message) for message in messages]
    return [{"role": "system", "content": told}, *plain] if functions else plain


def _with_written_calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in map(_with_parsed_arguments, calls)]
    written = msgspec.json.encode([{name: f.get(name) for name in ("name", "arguments")} for f in functions]).decode()
    return {"role": message["role"], "content": written}


def _prepared(message: Message, template: str) -> dict[str, Any]:
    made = {name: value for name, value in message.items() if value is not None}
    if made.get("role") == "developer" and "developer" not in template:
        made["role"] = "system"
    for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
        if name in made:
            made.setdefault(other, made[name])
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    # a template that knows no calls would write "None" for the content of a message that has none
    made.setdefault("content", None if "tool_calls" in made and "tool_calls" in template else "")
    return made


def _with_parsed_arguments(call: Any) -> Any:
    """Templates write arguments as JSON themselves; what is not the JSON of an object is left to them as it is."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _mark_end(messages: list[dict[str, Any]]) -> None:
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or content is None or last.get("tool_calls"):
        raise InvalidRequestError("continue_final_message", "the last message must be the assistant's and have content")
    if isinstance(content, str):
        last["content"] = content + _END
    elif content:
        *parts, part = content
        last["content"] = [*parts, {**part, "text": f"{part.get('text', '')}{_END}"}]
