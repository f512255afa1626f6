"""What clients send to `POST /v1/responses`, and the conversation that it asks for.

Owns: OpenAI's records for items and flat tools. Must never know: what an answer looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from octavo.errors import InvalidRequestError
from octavo.spec import Message, Tool
from octavo_openai.apis.sampling import SamplingRequest, check_at_most, constrain, sampling_changes
from octavo_openai.errors import APIError
from octavo_openai.http.bodies import required
from octavo_openai.options import ServerOptions
from octavo_openai.pipeline.conversation import Conversation
from octavo_openai.pipeline.history import History
from octavo_openai.pipeline.messages import Rendering
from octavo_openai.pipeline.tool_choice import read_tool_choice

LOGPROBS = "message.output_text.logprobs"
"""What `include` calls log probabilities."""
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


class InputPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    # in messages that OpenAI's own clients send back; no template knows them
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """A message (its type may be left out), a call, the result of one, or reasoning."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    # in items that OpenAI's own clients send back
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    encrypted_content: str | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: str | None = None
    """For templates that know it, as `reasoning_effort`."""
    summary: str | None = None
    """Reasoning is told in full, whatever this says."""
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(SamplingRequest, kw_only=True):
    input: str | list[InputItem]
    instructions: str | None = None
    """What the system says before the input."""
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    """Of tools that the server itself has; there are none."""
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: leave out the oldest messages of a conversation that is too long."""
    include: (
        list[
            Literal[
                "message.output_text.logprobs",
                "reasoning.encrypted_content",
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "message.input_image.image_url",
                "computer_call_output.output.image_url",
                "code_interpreter_call.outputs",
            ]
        ]
        | None
    ) = None
    """Log probabilities; of the rest there is nothing here."""
    top_logprobs: int | None = None
    stream_options: ResponseStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """The template's own variables."""
    # known in order to be refused
    previous_response_id: str | None = None
    conversation_: Any = msgspec.field(default=None, name="conversation")
    prompt: Any = None
    background: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def conversation(self, options: ServerOptions) -> Conversation:
        """Raises `InvalidRequestError` and `APIError`."""
        self._refuse()
        check_at_most("tools", len(self.tools or ()), options.max_tools)
        tools, choice = read_tool_choice(self.tool_choice, [_template_tool(tool) for tool in self.tools or ()])
        if self.wants_logprobs and tools and choice.mode != "none":
            raise InvalidRequestError(
                "include", f"{LOGPROBS}: tokens of the text cannot be told from those of calls; send tool_choice 'none'"
            )
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning is not None and self.reasoning.effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning.effort)
        return Conversation(
            messages=self._messages(),
            sampling=self._sampling(options),
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            rendering=Rendering(variables=variables),
            truncates=self.truncation == "auto",
            cache_salt=self.cache_salt,
        )

    def field_names(self) -> dict[str, str]:
        """What this request calls the engine's fields."""
        names = {
            "prompt": "input",
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "logprobs": "top_logprobs",
            "response_format": "text.format",
        }
        if self.structured_outputs is None:
            has_format = self.text is not None and self.text.format is not None and self.text.format.type != "text"
            names["structured_outputs"] = "text.format" if has_format else "tools"
        return names

    def _refuse(self) -> None:
        whole = "nothing is stored here; send the whole conversation in input"
        for name, value, instead in (
            ("previous_response_id", self.previous_response_id, whole),
            ("conversation", self.conversation_, whole),
            ("prompt", self.prompt, "nothing is stored here; send instructions and input"),
            ("background", self.background or None, "is not offered; leave it out, and stream"),
        ):
            if value is not None:
                raise APIError(400, f"{name}: {instead}", param=name, code="invalid_value")

    def _sampling(self, options: ServerOptions) -> dict[str, Any]:
        changes = sampling_changes(self, options)
        changes["max_tokens"] = self.max_output_tokens
        if self.text is not None and self.text.format is not None:
            constrain(changes, self.text.format.type, self.text.format.schema, "text.format")
        if self.top_logprobs and not self.wants_logprobs:
            raise InvalidRequestError("top_logprobs", f"needs {LOGPROBS!r} in include")
        check_at_most("top_logprobs", self.top_logprobs, options.max_logprobs)
        changes["logprobs"] = (self.top_logprobs or 0) if self.wants_logprobs else None
        return changes

    def _messages(self) -> list[Message]:
        history = History()
        if self.instructions is not None:
            history.say("system", [self.instructions])
        if isinstance(self.input, str):
            history.say("user", [self.input])
        else:
            for i, item in enumerate(self.input):
                _add_item(history, item, f"input[{i}]")
        return list(history.messages())


def _add_item(history: History, item: InputItem, path: str) -> None:
    match item.type:
        case None | "message":
            role = required(item.role, f"{path}.role")
            history.say(role, _texts(required(item.content, f"{path}.content"), f"{path}.content"))
        case "function_call":
            history.call(
                required(item.call_id, f"{path}.call_id"),
                required(item.name, f"{path}.name"),
                required(item.arguments, f"{path}.arguments"),
            )
        case "function_call_output":
            texts = _texts(required(item.output, f"{path}.output"), f"{path}.output")
            history.result(required(item.call_id, f"{path}.call_id"), texts)
        case "reasoning":
            if texts := _texts(item.content or item.summary or [], f"{path}.content"):
                history.think("\n".join(texts))
        case kind:
            raise InvalidRequestError(
                f"{path}.type",
                f"{kind[:40]!r} is not known here; send message, function_call, function_call_output or reasoning",
            )


def _texts(content: str | Sequence[InputPart], path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = []
    for i, part in enumerate(content):
        if part.type == "refusal":
            texts.append(required(part.refusal, f"{path}[{i}].refusal"))
        elif part.type in _TEXTS:
            texts.append(required(part.text, f"{path}[{i}].text"))
        else:
            raise InvalidRequestError(f"{path}[{i}].type", f"{part.type[:40]!r} is not offered; send text only")
    return texts


def _template_tool(tool: FunctionTool) -> Tool:
    """As chat templates get it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}
