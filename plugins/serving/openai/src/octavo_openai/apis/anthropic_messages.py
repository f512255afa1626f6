"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's shape around a conversation.

Owns: how blocks become content, and their changes events. Must never know: prompts, parsers, how an answer is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET

from octavo_openai.apis.answer_writer import answer_conversation
from octavo_openai.apis.anthropic_records import (
    AnthropicMessage,
    AnthropicUsage,
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Ending,
    InputPiece,
    InputTokens,
    MessageEnd,
    MessageStart,
    MessageStop,
    Piece,
    StopReason,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ThinkingTokens,
    ToolUseBlock,
)
from octavo_openai.apis.anthropic_request import CountTokensRequest, MessagesRequest
from octavo_openai.apis.json_object import ObjectText
from octavo_openai.errors import field_names
from octavo_openai.http.answers import EventStream, frame
from octavo_openai.http.api_call import APICall, new_id
from octavo_openai.pipeline.blocks import Block, BlockAnswer, Change, Kind, Step
from octavo_openai.pipeline.conversation import Answer, prompt_token_ids


async def create_message(api_call: APICall[MessagesRequest]) -> msgspec.Struct | EventStream:
    return await answer_conversation(api_call, new_id("msg_"), _Writer)


async def count_tokens(api_call: APICall[CountTokensRequest]) -> InputTokens:
    body, service = api_call.body, api_call.service
    service.find_model(body.model)
    with field_names(body.field_names()):
        ids = await prompt_token_ids(service, body.conversation(service.options))
    return InputTokens(input_tokens=len(ids))


class _Writer:
    """Writes one answer, as a whole or as a stream of events."""

    failure = None

    def __init__(self, api_call: APICall[MessagesRequest], answer: Answer, answer_id: str, model: str) -> None:
        self._api_call, self._answer = api_call, answer
        self._id, self._model = answer_id, model
        self._blocks = BlockAnswer(answer)
        self._input = ObjectText()
        """Of the call that is open in a stream."""

    async def whole(self) -> AnthropicMessage:
        await self._blocks.finish()
        message = self._message([_content(block) for block in self._blocks.blocks])
        ending = self._ending()
        message.stop_reason, message.stop_sequence = ending.stop_reason, ending.stop_sequence
        return message

    async def events(self) -> AsyncGenerator[bytes, None]:
        has_begun = False
        async with aclosing(self._blocks.changes(incremental=True)) as all_changes:
            async for changes in all_changes:
                frames = [] if has_begun else [frame(MessageStart(message=self._message([])))]
                has_begun = True
                for change in changes:
                    frames += [frame(event) for event in self._told(change)]
                if frames:
                    yield b"".join(frames)
        yield frame(MessageEnd(delta=self._ending(), usage=self._usage())) + frame(MessageStop())

    def _message(self, content: list[ContentBlock]) -> AnthropicMessage:
        return AnthropicMessage(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
        )

    def _usage(self) -> AnthropicUsage:
        count = self._answer.count
        return AnthropicUsage(
            input_tokens=count.prompt - count.cached,
            cache_read_input_tokens=count.cached,
            output_tokens=count.completion,
            output_tokens_details=UNSET if count.reasoning is None else ThinkingTokens(thinking_tokens=count.reasoning),
        )

    def _ending(self) -> Ending:
        blocks, sequence = self._blocks, self._stop_sequence()
        self._api_call.finish_reasons = [str(blocks.finish_reason)]
        reason: StopReason = "end_turn" if sequence is None else "stop_sequence"
        if blocks.finish_reason == "length":
            reason = "max_tokens"
        elif any(block.kind is Kind.CALL for block in blocks.blocks):
            reason = "tool_use"
        return Ending(stop_reason=reason, stop_sequence=sequence)

    def _stop_sequence(self) -> str | None:
        """The client's own that ended it. Those that are special tokens are watched for by their id."""
        stopped_by, special_token_id = self._blocks.stop_reason, self._answer.tokenizer.special_token_id
        if stopped_by is None:
            return None
        given = self._api_call.body.stop_sequences or ()
        return next((text for text in given if stopped_by in (text, special_token_id(text))), None)

    def _told(self, change: Change) -> list[msgspec.Struct]:
        block, step = change.block, change.step
        if step is Step.BEGIN:
            self._input = ObjectText()
            return [BlockStart(index=block.index, content_block=_begun(block))]
        events: list[msgspec.Struct] = []
        if block.kind is Kind.CALL:
            told = self._input.push(change.text) if step is Step.GROW else self._input.close()
        else:
            told = change.text
        if told:
            events.append(BlockDelta(index=block.index, delta=_piece(block.kind, told)))
        if step is Step.END:
            events.append(BlockStop(index=block.index))
        return events


def _begun(block: Block) -> ContentBlock:
    """A block that holds nothing yet."""
    return _content(Block(index=block.index, kind=block.kind, tool=block.tool))


def _content(block: Block) -> ContentBlock:
    if block.kind is Kind.TEXT:
        return TextBlock(text=block.text)
    if block.kind is Kind.REASONING:
        return ThinkingBlock(thinking=block.text)
    text = ObjectText()
    given = text.push(block.text) + text.close()
    return ToolUseBlock(id=f"toolu_{secrets.token_hex(12)}", name=block.tool, input=msgspec.Raw(given.encode()))


def _piece(kind: Kind, text: str) -> Piece:
    if kind is Kind.TEXT:
        return TextPiece(text=text)
    return ThinkingPiece(thinking=text) if kind is Kind.REASONING else InputPiece(partial_json=text)
