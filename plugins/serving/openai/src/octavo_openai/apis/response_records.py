"""What `POST /v1/responses` answers: the response, its items, and the events of a stream.

Owns: OpenAI's records, each with its `type`. Must never know: what they are made of.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from octavo_openai.apis.logprobs import ContentLogprob
from octavo_openai.apis.responses_request import FunctionTool, ReasoningOptions, TextOptions

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[ContentLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText]


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    """By which its result is sent back."""
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCall
Part = OutputText | ReasoningText


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Here nothing is paid for, so none is told apart."""


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseError(msgspec.Struct, kw_only=True):
    code: Literal["server_error", "invalid_prompt"]
    message: str
    param: str | None
    """The field of the request at fault."""


class Response(msgspec.Struct, kw_only=True):
    """The answer, and how it was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    reasoning: ReasoningOptions | None
    temperature: float
    top_p: float
    text: TextOptions
    tool_choice: str | dict[str, Any]
    tools: list[FunctionTool]
    top_logprobs: int
    truncation: str
    user: str | None
    background: bool = False
    store: bool = False
    """Nothing is stored, whatever was asked for."""
    previous_response_id: None = None


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    sequence_number: int = 0
    """Counts the events of a stream from 0."""


class ResponseEvent(Event, kw_only=True):
    response: Response


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"): ...


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"): ...


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"): ...


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"): ...


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"): ...


class ItemEvent(Event, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, kw_only=True, tag="response.output_item.added"): ...


class ItemDone(ItemEvent, kw_only=True, tag="response.output_item.done"): ...


class WithinItem(Event, kw_only=True):
    output_index: int
    item_id: str


class ArgumentsDelta(WithinItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(WithinItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class WithinPart(WithinItem, kw_only=True):
    content_index: int = 0
    """Every item has one part."""


class PartAdded(WithinPart, kw_only=True, tag="response.content_part.added"):
    part: Part


class PartDone(WithinPart, kw_only=True, tag="response.content_part.done"):
    part: Part


class TextDelta(WithinPart, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ContentLogprob]


class TextDone(WithinPart, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ContentLogprob]


class ReasoningDelta(WithinPart, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(WithinPart, kw_only=True, tag="response.reasoning_text.done"):
    text: str


EVENTS = (
    ResponseCreated,
    ResponseInProgress,
    ItemAdded,
    PartAdded,
    TextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
    PartDone,
    ItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
)
"""All that a stream may hold."""
