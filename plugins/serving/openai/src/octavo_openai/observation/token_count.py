"""How many tokens an API call took, also where it got no answer.

Owns: the counts. Must never know: what they are used for, what the tokens say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from octavo.request import FinishReason, Request, RequestOutput
from octavo.spec import Observer

_EARLY = (FinishReason.ABORT, FinishReason.ERROR)


@dataclass(slots=True, weakref_slot=True)
class TokenCount:
    """Counts as outputs come; prompts count once, however many completions they have."""

    prompt: int = 0
    reasoning: int | None = None
    """None where nothing was set apart as reasoning."""
    _completion: dict[str, int] = field(default_factory=dict)
    """By request."""
    _cached: dict[str, int] = field(default_factory=dict)
    """By request."""

    @property
    def completion(self) -> int:
        return sum(self._completion.values())

    @property
    def cached(self) -> int:
        """Prompt tokens that were found in the prefix cache; known with the first output."""
        return sum(self._cached.values())

    def add_output(self, output: RequestOutput) -> None:
        """Count what is new in an output of deltas, or a final one."""
        self._completion[output.request_id] = self._completion.get(output.request_id, 0) + _num_tokens(output)
        self._cached[output.request_id] = output.metrics.num_cached_tokens

    def set_whole(self, output: RequestOutput) -> None:
        """Count all of a request's completions, whatever was counted of them before."""
        self._completion[output.request_id] = _num_tokens(output)


class TokenCounts(Observer):
    """Makes the counts of API calls, and completes those of requests that end early.

    A call that does not stream has its tokens counted when its only output comes. If the client leaves or time runs
    out, none comes, though tokens were computed; the engine tells its observers how many.
    """

    def __init__(self) -> None:
        self._by_request: WeakValueDictionary[str, TokenCount] = WeakValueDictionary()
        """Weak, so that a count goes with its API call: a request that was made but never runs does not finish."""

    def begin(self, requests: Sequence[Request]) -> TokenCount:
        """The count of an API call, with its prompts."""
        count = TokenCount(prompt=sum(len(request.prompt_token_ids) for request in requests))
        self._by_request.update({request.request_id: count for request in requests})
        return count

    def on_finished(self, output: RequestOutput) -> None:
        count = self._by_request.get(output.request_id)
        if count is not None and any(completion.finish_reason in _EARLY for completion in output.outputs):
            count.set_whole(output)


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(completion.token_ids) for completion in output.outputs)
