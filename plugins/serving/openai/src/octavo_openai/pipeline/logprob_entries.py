"""How many log probabilities an answer may hold, for each takes memory from the engine to the last byte sent.

Owns: that count and its limit. Must never know: what an API calls its fields, how log probabilities are told, other
requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import InvalidRequestError
from octavo.request import Request


def count_logprob_entries(requests: Sequence[Request], limit: int) -> int:
    """What all the requests of an API call may bring: at each token its own entry and the most likely ones'.

    Raises `InvalidRequestError` beyond `limit` entries, for whichever of `logprobs` and `prompt_logprobs` has more.
    """
    of_prompts = of_outputs = 0
    for request in requests:
        params = request.sampling_params
        if params.prompt_logprobs is not None:  # told with each completion
            of_prompts += params.n * len(request.prompt_token_ids) * (params.prompt_logprobs + 1)
        if params.logprobs is not None:
            of_outputs += params.n * request.max_tokens * (params.logprobs + 1)
    total = of_prompts + of_outputs
    if total <= limit:
        return total
    if of_prompts > of_outputs:
        field, instead = "prompt_logprobs", "ask for fewer, or send fewer or shorter prompts"
    else:
        field, instead = "logprobs", "ask for fewer, or for fewer completions, or set a smaller limit of their tokens"
    raise InvalidRequestError(field, f"may come to {total} log probabilities, and at most {limit} fit here; {instead}")
