"""Conversations that are too long for the model, without their oldest messages.

Owns: which messages are left out. Must never know: how messages become a prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from octavo import TokensPrompt
from octavo.spec import Message

Render = Callable[[Sequence[Message]], Awaitable[TokensPrompt]]


async def render_latest(render: Render, messages: Sequence[Message], max_tokens: int) -> TokensPrompt:
    """The prompt of as many messages as fit in `max_tokens`.

    What the system says at first stays, and the last message of the user with all that follows; so it may be too long
    still. What is kept of the rest begins with a message of the user, so that calls keep their results.
    """
    prompt = await render(messages)
    head = next((i for i, m in enumerate(messages) if m["role"] not in ("system", "developer")), len(messages))
    starts = [i for i, message in enumerate(messages) if message["role"] == "user" and i > head]
    if len(prompt["prompt_token_ids"]) <= max_tokens or not starts:
        return prompt
    low, high = 0, len(starts) - 1
    while low < high:  # the more is left out, the shorter it is
        middle = (low + high) // 2
        prompt = await render([*messages[:head], *messages[starts[middle] :]])
        if len(prompt["prompt_token_ids"]) <= max_tokens:
            high = middle
        else:
            low = middle + 1
    return await render([*messages[:head], *messages[starts[low] :]])
