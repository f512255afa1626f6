"""The prompts of a request, in whichever of OpenAI's forms they come.

Owns: text and token ids apart, truncation. Must never know: messages, sampling.
"""

from __future__ import annotations

from typing import cast

from octavo import AsyncLLM, TextPrompt, TokensPrompt
from octavo.errors import InvalidRequestError
from octavo.spec import Tokenizer

PromptField = str | list[str | int | list[int]]
"""A text, a list of texts, token ids, or a list of lists of them. (msgspec has no union of lists.)"""


def split_prompts(given: PromptField) -> list[str | list[int]]:
    """One entry for each prompt. Raises `InvalidRequestError`."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError("prompt", "is empty; give at least one token")
    if all(isinstance(item, int) for item in given):
        return [cast(list[int], given)]
    if any(isinstance(item, int) for item in given):
        raise InvalidRequestError("prompt", "must be a text, token ids, or a list of texts or of lists of token ids")
    return cast(list[str | list[int]], given)


async def prepare_prompt(
    llm: AsyncLLM, given: str | list[int], add_special_tokens: bool, truncate: int | None, cache_salt: str | None
) -> TextPrompt | TokensPrompt:
    """A prompt for `make_request`, cut to its last `truncate` tokens; -1 for as many as the model takes."""
    if truncate is not None and (truncate < -1 or truncate == 0):
        raise InvalidRequestError("truncate_prompt_tokens", f"must be at least 1, or -1, got {truncate}")
    if isinstance(given, str) and add_special_tokens and truncate is None:
        return {"prompt": given, "cache_salt": cache_salt}
    ids = given if isinstance(given, list) else await llm.encode(given, add_special_tokens)
    text = given if isinstance(given, str) else None
    longest = llm.max_model_len - 1
    if truncate is not None:
        ids, text = ids[-min(longest if truncate == -1 else truncate, longest) :], None
    if len(ids) > longest:  # said here, for to look at all of them takes long
        raise InvalidRequestError("prompt", f"has {len(ids)} tokens; at most {longest} fit")
    return {"prompt": text, "prompt_token_ids": ids, "cache_salt": cache_salt}


def need_tokenizer(llm: AsyncLLM) -> Tokenizer:
    """Raises `InvalidRequestError` if the model has none."""
    if llm.tokenizer is None:
        raise InvalidRequestError("prompt", "this model has no tokenizer; send token ids")
    return llm.tokenizer
