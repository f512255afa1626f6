"""`POST /tokenize` and `POST /detokenize`, as vLLM has them: the ids that the engine would compute.

Owns: their records. Must never know: how a tokenizer works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError
from octavo_openai.apis.chat_request import ChatMessage, ToolDefinition, template_messages, template_tools
from octavo_openai.http.api_call import APICall
from octavo_openai.pipeline.conversation import Conversation, prompt_token_ids
from octavo_openai.pipeline.messages import Rendering
from octavo_openai.pipeline.prompts import need_tokenizer


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A prompt, or else messages as in a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    """Of a prompt; a chat template writes its own."""
    return_token_strs: bool | None = None
    tools: list[ToolDefinition] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: list[str] | None
    """As the vocabulary spells them, if that was asked for."""


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    prompt: str


async def tokenize(api_call: APICall[TokenizeRequest]) -> TokenizeResponse:
    body, llm = api_call.body, api_call.service.llm
    api_call.service.find_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt", "give either prompt or messages")
    if body.prompt is not None:
        ids = await llm.encode(body.prompt, body.add_special_tokens is not False)
    else:
        rendering = Rendering(
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            variables=body.chat_template_kwargs or {},
        )
        messages, tools = template_messages(body.messages or []), template_tools(body.tools)
        ids = await prompt_token_ids(
            api_call.service, Conversation(messages=messages, tools=tools, rendering=rendering)
        )
    if body.return_token_strs and len(ids) > llm.max_model_len:  # to spell all of them would hold others up
        raise InvalidRequestError("return_token_strs", f"takes at most {llm.max_model_len} tokens, got {len(ids)}")
    spellings = [need_tokenizer(llm).token(i) for i in ids] if body.return_token_strs else None
    return TokenizeResponse(count=len(ids), max_model_len=llm.max_model_len, tokens=ids, token_strs=spellings)


async def detokenize(api_call: APICall[DetokenizeRequest]) -> DetokenizeResponse:
    ids, llm = api_call.body.tokens, api_call.service.llm
    api_call.service.find_model(api_call.body.model)
    tokenizer = need_tokenizer(llm)
    if ids and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
        raise InvalidRequestError("tokens", f"ids must be from 0 to {tokenizer.vocab_size - 1}")
    return DetokenizeResponse(prompt=await llm.decode(ids, skip_special_tokens=False))
