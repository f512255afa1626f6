"""What clients send to `POST /v1/chat/completions`, and the conversation that it asks for.

Owns: OpenAI's records for messages and tools. Must never know: what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidRequestError
from octavo_openai.apis.sampling import GenerationRequest, check_at_most, generation_changes
from octavo_openai.options import ServerOptions
from octavo_openai.pipeline.conversation import Conversation
from octavo_openai.pipeline.messages import Rendering
from octavo_openai.pipeline.tool_choice import read_tool_choice


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class PastToolCall(msgspec.Struct, kw_only=True):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    """Only the assistant's may be left out."""
    name: str | None = None
    tool_calls: list[PastToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # in messages that OpenAI's own clients send back; no template knows them
    refusal: str | None = None
    annotations: list[Any] | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionDefinition


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    messages: list[ChatMessage]
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """The template's own variables."""
    reasoning_effort: str | None = None
    """One of them, for templates that know it."""
    modalities: list[str] | None = None
    # known in order to be refused
    chat_template: str | None = None
    functions: list[Any] | None = None
    function_call: Any = None

    def conversation(self, options: ServerOptions) -> Conversation:
        """Raises `InvalidRequestError`."""
        for name, instead in _REFUSED.items():
            if getattr(self, name) is not None:
                raise InvalidRequestError(name, instead)
        if self.modalities not in (None, ["text"]):
            raise InvalidRequestError("modalities", 'must be ["text"]')
        check_at_most("tools", len(self.tools or ()), options.max_tools)
        tools, choice = read_tool_choice(self.tool_choice, template_tools(self.tools))
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return Conversation(
            messages=template_messages(self.messages),
            sampling=self._sampling(options),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            rendering=Rendering(
                add_generation_prompt=self.add_generation_prompt,
                continue_final_message=bool(self.continue_final_message),
                variables=variables,
            ),
            cache_salt=self.cache_salt,
        )

    def field_names(self) -> dict[str, str]:
        """What this request calls the engine's fields."""
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        if self.structured_outputs is None:
            has_format = self.response_format is not None and self.response_format.type != "text"
            names["structured_outputs"] = "response_format" if has_format else "tools"
        return names

    def _sampling(self, options: ServerOptions) -> dict[str, Any]:
        changes = generation_changes(self, options)
        if self.max_completion_tokens is not None:
            changes["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs", "needs logprobs: true")
        check_at_most("top_logprobs", self.top_logprobs, options.max_logprobs)
        changes["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return changes


_REFUSED = {
    "chat_template": "the server's is used; leave it out, and start the server with --chat-template to have another",
    "functions": "is no longer known; use tools",
    "function_call": "is no longer known; use tool_choice",
}


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As chat templates get them. Raises `InvalidRequestError` for content that is missing."""
    for i, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            raise InvalidRequestError(f"messages[{i}].content", "is required")
    made = [_without_nulls(message) for message in messages]
    return [{k: v for k, v in m.items() if k not in ("refusal", "annotations")} for m in made]


def template_tools(tools: Sequence[ToolDefinition] | None) -> list[dict[str, Any]]:
    """As chat templates get them: without `strict`, which is no business of the model's."""
    made = [_without_nulls(tool) for tool in tools or ()]
    for tool in made:
        tool["function"].pop("strict", None)
    return made


def _without_nulls(record: msgspec.Struct) -> dict[str, Any]:
    """A record as plain mappings; its fields that are null are left out, and those of records in it."""

    def plain(value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            fields = msgspec.structs.asdict(value)
            return {name: plain(inner) for name, inner in fields.items() if inner is not None}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(record)
