"""`POST /v1/responses`: OpenAI's newer shape around a conversation, an item for each part of the answer.

Owns: how blocks become items, and their changes events. Must never know: prompts, parsers, how an answer is sent.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from octavo_openai.apis.answer_writer import answer_conversation
from octavo_openai.apis.logprobs import ContentLogprob, Spelling, content_logprobs
from octavo_openai.apis.response_records import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    ItemAdded,
    ItemDone,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseUsage,
    Status,
    TextDelta,
    TextDone,
)
from octavo_openai.apis.responses_request import ResponsesRequest, TextFormat, TextOptions
from octavo_openai.errors import APIError
from octavo_openai.http.answers import EventStream, frame
from octavo_openai.http.api_call import APICall, new_id
from octavo_openai.pipeline.blocks import Block, BlockAnswer, Change, Kind, Step
from octavo_openai.pipeline.conversation import Answer

_ID_PREFIX = {Kind.REASONING: "rs", Kind.TEXT: "msg", Kind.CALL: "fc"}


async def create_response(api_call: APICall[ResponsesRequest]) -> msgspec.Struct | EventStream:
    return await answer_conversation(api_call, new_id("resp_", api_call.body.request_id), _Writer)


class _Writer:
    """Writes one answer, as a whole or as a stream of events."""

    def __init__(self, api_call: APICall[ResponsesRequest], answer: Answer, answer_id: str, model: str) -> None:
        self._api_call, self._body, self._answer = api_call, api_call.body, answer
        self._id, self._model = answer_id, model
        self._blocks = BlockAnswer(answer)
        self._tokens: list[str] = []
        """Of each block: what its ids are made of."""
        self._spelling = Spelling(answer.tokenizer) if self._body.wants_logprobs else None
        self._logprobs: list[ContentLogprob] = []
        """Of all tokens that have come: there is but one text where they are wanted."""
        self._num_told = 0
        """Log probabilities that were told in a stream."""
        self._num_events = 0

    async def whole(self) -> Response:
        await self._blocks.finish()
        await self._read_logprobs()
        return self._ended()

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._blocks.changes(incremental=True)) as all_changes:
            async for changes in all_changes:
                await self._read_logprobs()
                events = self._first_events() if self._num_events == 0 else []
                for change in changes:
                    events += self._told(change)
                if events:
                    yield self._frames(events)
        response = self._ended()
        is_cut = response.incomplete_details is not None
        yield self._frames([ResponseIncomplete(response=response) if is_cut else ResponseCompleted(response=response)])

    def failure(self, error: APIError) -> bytes:
        response = self._response("failed", self._output())
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        response.error = ResponseError(code=code, message=error.message, param=error.param)
        events = self._first_events() if self._num_events == 0 else []
        return self._frames([*events, ResponseFailed(response=response)])

    def _ended(self) -> Response:
        """The whole response, once all is computed."""
        is_cut = self._blocks.finish_reason == "length"
        self._api_call.finish_reasons = [str(self._blocks.finish_reason)]
        response = self._response("incomplete" if is_cut else "completed", self._output())
        if is_cut:
            response.incomplete_details = IncompleteDetails()
        else:
            response.completed_at = int(time.time())
        count = self._answer.count
        response.usage = ResponseUsage(
            input_tokens=count.prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=count.cached),
            output_tokens=count.completion,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=count.reasoning or 0),
            total_tokens=count.prompt + count.completion,
        )
        return response

    def _response(self, status: Status, output: list[OutputItem]) -> Response:
        body, params = self._body, self._answer.request.sampling_params
        text = body.text or TextOptions()
        return Response(
            id=self._id,
            created_at=self._api_call.created,
            status=status,
            model=self._model,
            output=output,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning,
            temperature=params.temperature,
            top_p=params.top_p,
            text=msgspec.structs.replace(text, format=text.format or TextFormat(type="text")),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            truncation=body.truncation or "disabled",
            user=body.user,
        )

    def _output(self) -> list[OutputItem]:
        return [self._ended_item(block) for block in self._blocks.blocks]

    def _ended_item(self, block: Block) -> OutputItem:
        return self._item(block, "incomplete" if self._blocks.is_cut(block) else "completed")

    def _item(self, block: Block, status: Status) -> OutputItem:
        """A block as an item, which holds nothing while it is in progress."""
        is_empty, item_id = status == "in_progress", self._item_id(block)
        if block.kind is Kind.CALL:
            call_id = f"call_{self._tokens[block.index]}"
            arguments = "" if is_empty else block.text
            return FunctionCall(id=item_id, status=status, call_id=call_id, name=block.tool, arguments=arguments)
        if block.kind is Kind.TEXT:
            return OutputMessage(id=item_id, status=status, content=[] if is_empty else [self._text(block)])
        content = [] if is_empty else [ReasoningText(text=block.text)]
        return ReasoningItem(id=item_id, status=status, content=content)

    def _item_id(self, block: Block) -> str:
        while len(self._tokens) <= block.index:
            self._tokens.append(secrets.token_hex(12))
        return f"{_ID_PREFIX[block.kind]}_{self._tokens[block.index]}"

    def _text(self, block: Block) -> OutputText:
        return OutputText(text=block.text, logprobs=self._logprobs)

    async def _read_logprobs(self) -> None:
        """Write out those of the tokens that have come since the last time."""
        if self._spelling is not None:
            new = self._blocks.logprobs[len(self._logprobs) :]
            self._logprobs += await content_logprobs(new, self._spelling, self._api_call.service.turns)

    def _frames(self, events: list[Event]) -> bytes:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return b"".join([frame(event) for event in events])

    def _first_events(self) -> list[Event]:
        response = self._response("in_progress", [])
        return [ResponseCreated(response=response), ResponseInProgress(response=response)]

    def _told(self, change: Change) -> list[Event]:
        block = change.block
        index, item_id = block.index, self._item_id(block)
        match change.step, block.kind:
            case Step.BEGIN, kind:
                events: list[Event] = [ItemAdded(output_index=index, item=self._item(block, "in_progress"))]
                if kind is not Kind.CALL:
                    part = OutputText(text="") if kind is Kind.TEXT else ReasoningText(text="")
                    events.append(PartAdded(output_index=index, item_id=item_id, part=part))
                return events
            case Step.GROW, Kind.TEXT:
                logprobs = self._logprobs[self._num_told :]
                self._num_told += len(logprobs)
                return [TextDelta(output_index=index, item_id=item_id, delta=change.text, logprobs=logprobs)]
            case Step.GROW, Kind.REASONING:
                return [ReasoningDelta(output_index=index, item_id=item_id, delta=change.text)]
            case Step.GROW, _:
                return [ArgumentsDelta(output_index=index, item_id=item_id, delta=change.text)]
        return self._last_events(block)

    def _last_events(self, block: Block) -> list[Event]:
        """Of a block that has ended."""
        index, item_id, text = block.index, self._item_id(block), block.text
        done = ItemDone(output_index=index, item=self._ended_item(block))
        if block.kind is Kind.CALL:
            return [ArgumentsDone(output_index=index, item_id=item_id, name=block.tool, arguments=text), done]
        if block.kind is Kind.REASONING:
            last = ReasoningDone(output_index=index, item_id=item_id, text=text)
            return [last, PartDone(output_index=index, item_id=item_id, part=ReasoningText(text=text)), done]
        part = self._text(block)
        last = TextDone(output_index=index, item_id=item_id, text=text, logprobs=part.logprobs)
        return [last, PartDone(output_index=index, item_id=item_id, part=part), done]
