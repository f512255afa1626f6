"""`POST /v1/chat/completions`: OpenAI's shape around a conversation.

Owns: its records, whole and in chunks. Must never know: prompts, parsers, how an answer is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo.spec import MessageDelta, ToolCallDelta
from octavo_openai.apis.answer_writer import answer_conversation
from octavo_openai.apis.chat_request import ChatCompletionRequest
from octavo_openai.apis.logprobs import ChatLogprobs, PromptLogprobs, Spelling, content_logprobs, prompt_logprobs
from octavo_openai.apis.usage import StreamUsage, Usage, usage_of
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import APICall, new_id
from octavo_openai.pipeline.choices import ChoiceDelta
from octavo_openai.pipeline.conversation import Answer


class Function(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    """In a stream it comes once, first."""
    arguments: str = ""
    """JSON text; in a stream, a piece of it."""


class ToolCall(msgspec.Struct, kw_only=True):
    index: int | UnsetType = UNSET
    """In a stream only."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: Function


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """The same under the older name."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET

    @property
    def tells(self) -> bool:
        """Whether it is anything but the silence of a token whose text is not certain yet."""
        delta = self.delta
        said = delta.role or delta.content or delta.reasoning or delta.tool_calls
        return bool(said or self.logprobs or self.finish_reason or self.token_ids)


class ChatCompletionChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


async def create_chat_completion(api_call: APICall[ChatCompletionRequest]) -> msgspec.Struct | EventStream:
    return await answer_conversation(api_call, new_id("chatcmpl-", api_call.body.request_id), _Writer)


class _Writer:
    """Writes one answer, as a whole or as a stream of chunks."""

    failure = None

    def __init__(self, api_call: APICall[ChatCompletionRequest], answer: Answer, answer_id: str, model: str) -> None:
        self._api_call, self._body, self._answer = api_call, api_call.body, answer
        self._id, self._model = answer_id, model
        self._spelling: Spelling | None = None
        if self._body.logprobs or self._body.prompt_logprobs is not None:
            self._spelling = Spelling(answer.tokenizer, bool(self._body.return_tokens_as_token_ids))
        self._turns = api_call.service.turns
        self._has_begun = False
        """Whether a chunk was made."""
        self._told_prompt_logprobs: PromptLogprobs | UnsetType = UNSET
        self._begun_choices: set[int] = set()

    async def whole(self) -> ChatCompletion:
        async with aclosing(self._answer.deltas(incremental=False)) as all_deltas:
            choices = [
                self._choice(delta, await self._logprobs(delta)) async for deltas in all_deltas for delta in deltas
            ]
        self._api_call.finish_reasons = [str(choice.finish_reason) for choice in choices]
        return ChatCompletion(
            id=self._id,
            created=self._api_call.created,
            model=self._model,
            choices=choices,
            usage=usage_of(self._answer.count),
            prompt_token_ids=self._prompt_token_ids(),
            prompt_logprobs=await self._prompt_logprobs(),
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        usage = StreamUsage(self._body, self._api_call.service.options, self._answer.count)
        async with aclosing(self._answer.deltas(incremental=True)) as all_deltas:
            async for deltas in all_deltas:
                self._api_call.finish_reasons += [d.finish_reason for d in deltas if d.finish_reason is not None]
                choices = await self._chunk_choices(deltas)
                if not self._has_begun:
                    self._told_prompt_logprobs = await self._prompt_logprobs()
                if frames := usage.frames(choices, self._chunk):
                    yield frames
        yield usage.end(self._chunk)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        """The first of an answer tells about the prompt, too."""
        chunk = ChatCompletionChunk(
            id=self._id, created=self._api_call.created, model=self._model, choices=choices, usage=usage
        )
        if not self._has_begun:
            self._has_begun = True
            chunk.prompt_token_ids, chunk.prompt_logprobs = self._prompt_token_ids(), self._told_prompt_logprobs
        return chunk

    async def _chunk_choices(self, deltas: Sequence[ChoiceDelta]) -> list[ChunkChoice]:
        """What is new, and before the first of a choice whose message it is."""
        choices = []
        for delta in deltas:
            if delta.index not in self._begun_choices:
                self._begun_choices.add(delta.index)
                choices.append(ChunkChoice(index=delta.index, delta=Delta(role="assistant", content="")))
            choices.append(self._chunk_choice(delta, await self._logprobs(delta)))
        return choices

    def _chunk_choice(self, delta: ChoiceDelta, logprobs: ChatLogprobs | None) -> ChunkChoice:
        message = delta.message
        told = Delta()
        if message.content:
            told.content = message.content
        if message.reasoning:
            told.reasoning = told.reasoning_content = message.reasoning
        if message.tool_calls:
            told.tool_calls = [_call_piece(call) for call in message.tool_calls]
        return ChunkChoice(
            index=delta.index,
            delta=told,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if self._body.return_token_ids else UNSET,
        )

    def _choice(self, delta: ChoiceDelta, logprobs: ChatLogprobs | None) -> ChatChoice:
        return ChatChoice(
            index=delta.index,
            message=_whole_message(delta.message),
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._body.return_token_ids else UNSET,
        )

    async def _logprobs(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        if self._spelling is None or delta.logprobs is None:
            return None
        return ChatLogprobs(content=await content_logprobs(delta.logprobs, self._spelling, self._turns))

    def _prompt_token_ids(self) -> Sequence[int] | UnsetType:
        return self._answer.request.prompt_token_ids if self._body.return_token_ids else UNSET

    async def _prompt_logprobs(self) -> PromptLogprobs | UnsetType:
        num_top, found = self._body.prompt_logprobs, self._answer.prompt_logprobs or ()
        if num_top is None or self._spelling is None:
            return UNSET
        return await prompt_logprobs(found, num_top, self._spelling, self._turns)


def _call_piece(call: ToolCallDelta) -> ToolCall:
    if call.name is None:
        return ToolCall(index=call.index, function=Function(arguments=call.arguments))
    function = Function(name=call.name, arguments=call.arguments)
    return ToolCall(index=call.index, id=f"call_{secrets.token_hex(12)}", type="function", function=function)


def _whole_message(message: MessageDelta) -> AssistantMessage:
    made = AssistantMessage(content=message.content or (None if message.tool_calls else ""))
    if message.reasoning:
        made.reasoning = made.reasoning_content = message.reasoning
    if message.tool_calls:
        made.tool_calls = [msgspec.structs.replace(_call_piece(call), index=UNSET) for call in message.tool_calls]
    return made
