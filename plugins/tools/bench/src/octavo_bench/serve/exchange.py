"""One request to a server and what came of it.

Owns: `Exchange` and the times that follow from it. Must never know: HTTP, how anything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    """Failures of one kind are counted together: `HTTP 500`, `timeout`, `connection`, `error event`, `cut stream`,
    `malformed event`, `finish reason abort`."""
    message: str


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Times are on the clock of `time.perf_counter`, in seconds; None for what has not happened."""

    body: bytes = field(repr=False)
    max_tokens: int
    arrival: float = 0.0
    """Seconds after the start of the load at which it is sent, if nothing holds it back."""
    due: float | None = None
    """When it could be sent: it had arrived, and fewer requests were in flight than may be."""
    sent: float | None = None
    text_times: list[float] = field(default_factory=list, repr=False)
    """When each chunk with text came."""
    end: float | None = None
    """The end of the stream, or the failure."""
    num_input_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    """These three as the server counts them in `usage`; None where it does not."""
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def completed(self) -> bool:
        return self.end is not None and self.failure is None

    @property
    def ttft(self) -> float | None:
        """Time to the first text."""
        return self.text_times[0] - self.sent if self.text_times and self.sent is not None else None

    @property
    def e2e(self) -> float | None:
        """Until the stream has ended."""
        return self.end - self.sent if self.end is not None and self.sent is not None else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first one; None for fewer than two, or an unknown number."""
        if self.e2e is None or self.ttft is None or (self.num_output_tokens or 0) < 2:
            return None
        return (self.e2e - self.ttft) / (self.num_output_tokens - 1)  # type: ignore[operator]

    @property
    def itl(self) -> list[float]:
        """Times between a chunk with text and the next."""
        return [after - before for before, after in pairwise(self.text_times)]
