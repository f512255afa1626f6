"""How many tokens a request took.

Owns: OpenAI's usage record and the count that it is made of. Must never know: where tokens come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo.request import Request, RequestOutput


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    """Prompt tokens whose KV was found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class TokenCount:
    """Counts as outputs come; prompts count once, however many completions they have."""

    prompt: int = 0
    completion: int = 0
    reasoning: int | None = None
    """None where nothing was set apart as reasoning."""
    _cached: dict[str, int] = field(default_factory=dict)
    """By request."""

    @property
    def cached(self) -> int:
        """Prompt tokens that were found in the prefix cache; known with the first output."""
        return sum(self._cached.values())

    def add_prompt(self, request: Request) -> None:
        self.prompt += len(request.prompt_token_ids)

    def add_output(self, output: RequestOutput) -> None:
        """Count what is new in an output of deltas, or a final one."""
        for completion in output.outputs:
            self.completion += len(completion.token_ids)
        self._cached[output.request_id] = output.metrics.num_cached_tokens

    def usage(self) -> Usage:
        details = msgspec.UNSET
        if self.reasoning is not None:
            details = CompletionTokensDetails(reasoning_tokens=self.reasoning)
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.prompt + self.completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached),
            completion_tokens_details=details,
        )
