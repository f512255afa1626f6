"""How many tokens an API call took. Owns: the count. Must never know: where tokens come from, how they are told of."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.request import Request, RequestOutput


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
