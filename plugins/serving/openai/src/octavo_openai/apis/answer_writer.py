"""From the body of an API call to the whole answer, or to a stream of it.

Owns: the order of the steps, which all APIs have in common. Must never know: what any of them looks like.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec

from octavo.request import Request
from octavo_openai.errors import APIError, field_names
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import APICall, engine_id
from octavo_openai.options import ServerOptions
from octavo_openai.pipeline.conversation import Answer, Conversation, prepare_answer
from octavo_openai.pipeline.logprob_entries import count_logprob_entries


class AnswerRequest(Protocol):
    """A body that asks for text, whole or in a stream."""

    model: str | None
    stream: bool | None

    def field_names(self) -> Mapping[str, str]:
        """What this request calls the engine's fields."""
        ...


class ConversationRequest(AnswerRequest, Protocol):
    """A body that asks for the next message of a conversation."""

    def conversation(self, options: ServerOptions) -> Conversation:
        """Raises `InvalidRequestError` and `APIError`."""
        ...


R = TypeVar("R", bound=AnswerRequest)
C = TypeVar("C", bound=ConversationRequest)


class AnswerWriter(Protocol):
    """Writes one answer in an API's shape, as a whole or as a stream."""

    @property
    def failure(self) -> Callable[[APIError], bytes] | None:
        """Makes the last events of a stream that cannot go on; None: as the route has it."""
        ...

    async def whole(self) -> msgspec.Struct: ...

    def events(self) -> AsyncGenerator[bytes, None]:
        """Frames; none before something is computed, for until then an error is no broken stream."""
        ...


async def answer_api_call(
    api_call: APICall[R], prepare: Callable[[str], Awaitable[AnswerWriter]]
) -> msgspec.Struct | EventStream:
    """`prepare` gets the model's name, and computes nothing yet; what it finds wrong is an error, no broken stream."""
    body = api_call.body
    names = body.field_names()
    model = api_call.service.find_model(body.model)
    with field_names(names):
        writer = await prepare(model)
        if not body.stream:
            return await writer.whole()
    return EventStream(_named(writer.events(), names), writer.failure)


async def answer_conversation(
    api_call: APICall[C], answer_id: str, make_writer: Callable[[APICall[C], Answer, str, str], AnswerWriter]
) -> msgspec.Struct | EventStream:
    """`make_writer` gets the API call, its answer, `answer_id` and the model's name."""

    async def prepare(model: str) -> AnswerWriter:
        service = api_call.service
        conversation = api_call.body.conversation(service.options)
        answer = await prepare_answer(service, engine_id(answer_id), conversation, api_call.trace_headers)
        hold_logprobs(api_call, [answer.request])
        api_call.count = answer.count
        return make_writer(api_call, answer, answer_id, model)

    return await answer_api_call(api_call, prepare)


def hold_logprobs(api_call: APICall[R], requests: Sequence[Request]) -> None:
    """Take the room that the log probabilities of the requests may need, until the API call ends.

    Raises `InvalidRequestError` for more than an answer may hold, `APIError` (429) where others leave too little room.
    """
    service = api_call.service
    num_entries = count_logprob_entries(requests, service.options.max_logprob_entries)
    if num_entries:
        api_call.at_end.enter_context(service.room_for_logprobs(num_entries))


async def _named(frames: AsyncGenerator[bytes, None], names: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
    with field_names(names):
        async with aclosing(frames):
            async for frame in frames:
                yield frame
