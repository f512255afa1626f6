"""What the server answers to. Owns: the list of routes. Must never know: how a request is read or an answer sent."""

from __future__ import annotations

from octavo_openai.apis.anthropic_errors import ANTHROPIC_ERRORS
from octavo_openai.apis.anthropic_messages import count_tokens, create_message
from octavo_openai.apis.anthropic_records import EVENTS as MESSAGE_EVENTS
from octavo_openai.apis.anthropic_records import AnthropicMessage, InputTokens
from octavo_openai.apis.anthropic_request import CountTokensRequest, MessagesRequest
from octavo_openai.apis.chat_completions import ChatCompletion, ChatCompletionChunk, create_chat_completion
from octavo_openai.apis.chat_request import ChatCompletionRequest
from octavo_openai.apis.completions import Completion, CompletionRequest, create_completion
from octavo_openai.apis.health import Health, Version, get_health, get_version
from octavo_openai.apis.models import Model, ModelList, get_model, list_models
from octavo_openai.apis.monitoring import get_metrics, get_status
from octavo_openai.apis.response_records import EVENTS as RESPONSE_EVENTS
from octavo_openai.apis.response_records import Response
from octavo_openai.apis.responses import create_response
from octavo_openai.apis.responses_request import ResponsesRequest
from octavo_openai.apis.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    detokenize,
    tokenize,
)
from octavo_openai.http.route import Route
from octavo_openai.observation.status import Status
from octavo_openai.options import ServerOptions


def always(options: ServerOptions) -> bool:
    return True


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
        is_polled=True,
    ),
    Route(method="GET", path="/version", handler=get_version, summary="The version", answer=Version, is_open=always),
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        summary="Counts for Prometheus",
        is_open=lambda options: options.open_metrics,
        is_polled=True,
    ),
    Route(
        method="GET",
        path="/status",
        handler=get_status,
        summary="The engine as it is now",
        answer=Status,
        is_polled=True,
    ),
)
