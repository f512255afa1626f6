"""What the server answers to: the one list of routes.

Owns: `Route` and the list. Must never know: how a request is read or an answer sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from octavo_openai.answers import Content, EventStream
from octavo_openai.anthropic_errors import ANTHROPIC_ERRORS
from octavo_openai.anthropic_messages import count_tokens, create_message
from octavo_openai.anthropic_records import EVENTS as MESSAGE_EVENTS
from octavo_openai.anthropic_records import AnthropicMessage, InputTokens
from octavo_openai.anthropic_request import CountTokensRequest, MessagesRequest
from octavo_openai.api_call import APICall
from octavo_openai.chat_completions import ChatCompletion, ChatCompletionChunk, create_chat_completion
from octavo_openai.chat_request import ChatCompletionRequest
from octavo_openai.completions import Completion, CompletionRequest, create_completion
from octavo_openai.errors import OPENAI_ERRORS, ErrorShape
from octavo_openai.health import Health, Version, get_health, get_version
from octavo_openai.models import Model, ModelList, get_model, list_models
from octavo_openai.observation import get_metrics, get_status
from octavo_openai.openapi import openapi_document
from octavo_openai.options import ServerOptions
from octavo_openai.response_records import EVENTS as RESPONSE_EVENTS
from octavo_openai.response_records import Response
from octavo_openai.responses import create_response
from octavo_openai.responses_request import ResponsesRequest
from octavo_openai.status import Status
from octavo_openai.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize,
    tokenize,
)

Answer = msgspec.Struct | EventStream | Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path, and who answers."""

    method: str
    path: str
    """With parameters as Starlette writes them: `{id}`, or `{id:path}` for one with slashes."""
    handler: Callable[[APICall], Awaitable[Answer]]
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    """None: what it answers has no schema."""
    events: tuple[type[msgspec.Struct], ...] = ()
    """What the events of a stream hold, if it can stream."""
    is_open: Callable[[ServerOptions], bool] = lambda options: False
    """Whether it answers without a key."""
    errors: ErrorShape = OPENAI_ERRORS


def always(options: ServerOptions) -> bool:
    return True


async def get_openapi(api_call: APICall[None]) -> Content:
    return Content(openapi_document(ROUTES), "application/json")


ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=create_chat_completion,
        summary="The next message of a conversation",
        body=ChatCompletionRequest,
        answer=ChatCompletion,
        events=(ChatCompletionChunk,),
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=create_completion,
        summary="What follows a prompt",
        body=CompletionRequest,
        answer=Completion,
        events=(Completion,),
    ),
    Route(
        method="POST",
        path="/v1/responses",
        handler=create_response,
        summary="The next items of a conversation",
        body=ResponsesRequest,
        answer=Response,
        events=RESPONSE_EVENTS,
    ),
    Route(
        method="POST",
        path="/v1/messages",
        handler=create_message,
        summary="The next message of a conversation, as Anthropic's API has it",
        body=MessagesRequest,
        answer=AnthropicMessage,
        events=MESSAGE_EVENTS,
        errors=ANTHROPIC_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/messages/count_tokens",
        handler=count_tokens,
        summary="How many tokens its prompt would have",
        body=CountTokensRequest,
        answer=InputTokens,
        errors=ANTHROPIC_ERRORS,
    ),
    Route(method="GET", path="/v1/models", handler=list_models, summary="The model's names", answer=ModelList),
    Route(method="GET", path="/v1/models/{model:path}", handler=get_model, summary="One of the names", answer=Model),
    Route(
        method="POST",
        path="/tokenize",
        handler=tokenize,
        summary="Token ids of a prompt or a conversation",
        body=TokenizeRequest,
        answer=TokenizeResponse,
    ),
    Route(
        method="POST",
        path="/detokenize",
        handler=detokenize,
        summary="The text of token ids",
        body=DetokenizeRequest,
        answer=DetokenizeResponse,
    ),
    Route(
        method="GET",
        path="/health",
        handler=get_health,
        summary="Whether requests are served",
        answer=Health,
        is_open=always,
    ),
    Route(method="GET", path="/version", handler=get_version, summary="The version", answer=Version, is_open=always),
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        summary="Counts for Prometheus",
        is_open=lambda options: options.open_metrics,
    ),
    Route(method="GET", path="/status", handler=get_status, summary="The engine as it is now", answer=Status),
    Route(method="GET", path="/openapi.json", handler=get_openapi, summary="This description"),
)
