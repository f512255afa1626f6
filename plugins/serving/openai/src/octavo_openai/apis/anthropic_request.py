"""What clients send to `POST /v1/messages`, and the conversation that it asks for.

Owns: Anthropic's records for turns and tools. Must never know: what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidRequestError
from octavo.spec import Message, Tool
from octavo_openai.apis.sampling import check_at_most, constrain
from octavo_openai.http.bodies import required
from octavo_openai.options import ServerOptions
from octavo_openai.pipeline.conversation import Conversation
from octavo_openai.pipeline.history import History
from octavo_openai.pipeline.messages import Rendering
from octavo_openai.pipeline.tool_choice import ToolChoice


class InputBlock(msgspec.Struct, kw_only=True):
    """Text, thinking, a use of a tool, or the result of one."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[InputBlock] | None = None
    # nothing here depends on them
    is_error: bool | None = None
    """The content of a result says what went wrong."""
    signature: str | None = None
    data: str | None = None
    citations: Any = None
    caller: Any = None
    cache_control: dict[str, Any] | None = None


class Turn(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[InputBlock]


class AnthropicTool(msgspec.Struct, kw_only=True):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    input_examples: list[Any] | None = None
    eager_input_streaming: bool | None = None
    """Input is streamed as it comes, whatever this says."""
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    cache_control: dict[str, Any] | None = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    """For templates that know `enable_thinking`."""
    budget_tokens: int | None = None
    """There is no limit but `max_tokens`."""
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    format: OutputFormat | None = None
    effort: str | None = None
    """For templates that know it, as `reasoning_effort`."""


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    model: str | None = None
    messages: list[Turn]
    system: str | list[InputBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    """Prefixes are cached anyway."""
    speed: str | None = None

    def conversation(self, options: ServerOptions) -> Conversation:
        """Raises `InvalidRequestError` and `APIError`."""
        check_at_most("tools", len(self.tools or ()), options.max_tools)
        messages = self._messages()
        last = messages[-1] if messages else {}
        if "tool_calls" in last:
            raise InvalidRequestError("messages", "the last turn uses tools; send their results")
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        return Conversation(
            messages=messages,
            sampling=self._sampling(options),
            tools=[_template_tool(tool) for tool in self.tools or ()],
            tool_choice=_tool_choice(choice),
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            rendering=Rendering(
                continue_final_message=last.get("role") == "assistant",
                variables=self._variables(),
            ),
        )

    def field_names(self) -> dict[str, str]:
        """What this request calls the engine's fields."""
        has_format = self.output_config is not None and self.output_config.format is not None
        return {
            "prompt": "messages",
            "continue_final_message": "messages",
            "stop": "stop_sequences",
            "response_format": "output_config.format",
            "structured_outputs": "output_config.format" if has_format else "tools",
        }

    def _sampling(self, options: ServerOptions) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.output_config is not None and self.output_config.format is not None:
            wanted = self.output_config.format
            constrain(changes, wanted.type, wanted.schema, "output_config.format")
        return changes

    def _variables(self) -> dict[str, Any]:
        """Of the chat template."""
        variables: dict[str, Any] = {}
        if self.thinking is not None:
            variables["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            variables["reasoning_effort"] = self.output_config.effort
        return variables

    def _messages(self) -> list[Message]:
        history = History()
        if self.system:
            _add_blocks(history, "system", [(self.system, "system")])
        # turns of one role in a row are one turn
        for role, turns in groupby(enumerate(self.messages), key=lambda turn: turn[1].role):
            _add_blocks(history, role, [(turn.content, f"messages[{i}].content") for i, turn in turns])
        return list(history.messages())


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    # for accounting elsewhere; nothing here depends on them
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None

    def _sampling(self, options: ServerOptions) -> dict[str, Any]:
        changes = super()._sampling(options)
        check_at_most("stop_sequences", len(self.stop_sequences or ()), options.max_stop_strings)
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "stop": self.stop_sequences}
        changes |= {name: value for name, value in given.items() if value is not None}
        changes["max_tokens"] = self.max_tokens
        return changes


def _add_blocks(history: History, role: str, contents: Sequence[tuple[str | list[InputBlock], str]]) -> None:
    """Add a turn; each content with its path. Texts that nothing comes between stay together."""
    texts: list[str] = []
    for content, path in contents:
        if isinstance(content, str):
            texts.append(content)
            continue
        for i, block in enumerate(content):
            place = f"{path}[{i}]"
            if block.type == "text":
                texts.append(required(block.text, f"{place}.text"))
                continue
            if texts:
                history.say(role, texts)
                texts = []
            _add_block(history, role, block, place)
    if texts or not any(content for content, _ in contents):
        history.say(role, texts)


def _add_block(history: History, role: str, block: InputBlock, path: str) -> None:
    match role, block.type:
        case "assistant", "thinking":
            history.think(required(block.thinking, f"{path}.thinking"))
        case "assistant", "redacted_thinking":
            pass
        case "assistant", "tool_use":
            call_id, name = required(block.id, f"{path}.id"), required(block.name, f"{path}.name")
            history.call(call_id, name, required(block.input, f"{path}.input"))
        case "user", "tool_result":
            call_id = required(block.tool_use_id, f"{path}.tool_use_id")
            history.result(call_id, _result_texts(block.content or "", f"{path}.content"))
        case _:
            known = {"user": "text or tool_result", "assistant": "text, thinking or tool_use"}.get(role, "text")
            raise InvalidRequestError(f"{path}.type", f"{block.type[:40]!r} is not known here; send {known}")


def _result_texts(content: str | list[InputBlock], path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    for i, block in enumerate(content):
        if block.type != "text":
            raise InvalidRequestError(f"{path}[{i}].type", f"{block.type[:40]!r} is not offered; send text only")
    return [required(block.text, f"{path}[{i}].text") for i, block in enumerate(content)]


def _template_tool(tool: AnthropicTool) -> Tool:
    """As chat templates get it."""
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _tool_choice(choice: AnthropicToolChoice) -> ToolChoice:
    if choice.type == "tool":
        return ToolChoice("required", required(choice.name, "tool_choice.name"))
    return ToolChoice("required" if choice.type == "any" else choice.type)
