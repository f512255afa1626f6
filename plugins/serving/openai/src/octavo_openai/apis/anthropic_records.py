"""What `POST /v1/messages` answers: the message, its blocks, and the events of a stream.

Owns: Anthropic's records, each with its `type`. Must never know: what they are made of.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Nothing is signed."""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    """An object, whatever the model wrote: what it wrote as far as that is one."""


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct, kw_only=True):
    thinking_tokens: int


class AnthropicUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    """Those of the prompt that were not found in the prefix cache."""
    cache_read_input_tokens: int
    """Those that were."""
    cache_creation_input_tokens: int = 0
    """Here nothing is paid for, so none is told apart."""
    output_tokens: int
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class AnthropicMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage


class InputTokens(msgspec.Struct, kw_only=True):
    input_tokens: int


class MessageStart(msgspec.Struct, kw_only=True, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class BlockStart(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: ContentBlock


class TextPiece(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputPiece(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


Piece = TextPiece | ThinkingPiece | InputPiece


class BlockDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Piece


class BlockStop(msgspec.Struct, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class Ending(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageEnd(msgspec.Struct, kw_only=True, tag_field="type", tag="message_delta"):
    delta: Ending
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, kw_only=True, tag_field="type", tag="message_stop"): ...


EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageEnd, MessageStop)
"""All that a stream may hold, but for an error."""
