"""The fields that all requests for text have in common, and the `SamplingParams` that they ask for.

Owns: those fields, the server's limits on them, `response_format`. Must never know: prompts, what an answer looks like.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import msgspec

from octavo import SamplingParams
from octavo.errors import InvalidRequestError
from octavo_openai.options import ServerOptions


class JSONSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema with a name; whether strict or not, it is enforced."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's way to say what form the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    """End the stream with a chunk that holds the usage."""
    continuous_usage_stats: bool | None = None
    """Tell the usage so far in every chunk."""
    include_obfuscation: bool | None = None


class SamplingRequest(msgspec.Struct, kw_only=True):
    """What may be said about sampling, in OpenAI's words and in vLLM's for what OpenAI lacks."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: str | list[str] | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None
    stream: bool | None = None
    request_id: str | None = None
    # for accounting elsewhere; nothing here depends on them
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class GenerationRequest(SamplingRequest, kw_only=True):
    """What is common to completions of prompts and of chats."""

    n: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


_PASSED_ON = frozenset(f.name for f in dataclasses.fields(SamplingParams)) & set(GenerationRequest.__struct_fields__)


def sampling_changes(body: SamplingRequest, options: ServerOptions) -> dict[str, Any]:
    """What the request changes of the model's default sampling options. Raises `InvalidRequestError`."""
    if isinstance(body.stop, list) and len(body.stop) > options.max_stop_strings:
        raise InvalidRequestError("stop", f"at most {options.max_stop_strings} strings here, got {len(body.stop)}")
    return {name: value for name in _PASSED_ON if (value := getattr(body, name, None)) is not None}


def generation_changes(body: GenerationRequest, options: ServerOptions) -> dict[str, Any]:
    """The same of a request that may have several completions. Raises `InvalidRequestError`."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options", "needs stream: true")
    changes = sampling_changes(body, options)
    wanted = body.response_format
    if wanted is not None:
        schema = None if wanted.json_schema is None else wanted.json_schema.schema
        constrain(changes, wanted.type, schema, "response_format")
    check_at_most("n", body.n, options.max_n)
    check_at_most("prompt_logprobs", body.prompt_logprobs, options.max_logprobs)
    return changes


def constrain(changes: dict[str, Any], kind: str, schema: Any, field: str) -> None:
    """Add the form that `field` says the text must have: `text`, `json_object` or `json_schema`.

    Raises `InvalidRequestError` if the schema is missing, or the text must have another form already.
    """
    if kind == "text":
        return
    if kind == "json_schema" and schema is None:
        raise InvalidRequestError(field, "type json_schema needs a schema")
    if "structured_outputs" in changes:
        raise InvalidRequestError(field, "and structured_outputs exclude each other")
    changes["structured_outputs"] = {"json_object": True} if kind == "json_object" else {"json": schema}


def check_at_most(name: str, value: int | None, limit: int) -> None:
    """Raises `InvalidRequestError` for what passes the server's limit."""
    if value is not None and value > limit:
        raise InvalidRequestError(name, f"must be at most {limit} here, got {value}")
