"""Contract of observers: metrics, tracing, logs. They look on; they never change a token."""

from __future__ import annotations

from octavo.request import Request, RequestOutput
from octavo.step import StepStats, TokenTimes


class Observer:
    """Told of what happens; a subclass overrides what it wants to be told.

    Calls come from one thread, but for `shutdown`. An exception is logged once and the observer is dropped; no request
    suffers.
    """

    def on_request(self, request: Request) -> None:
        """A request was accepted."""

    def on_step(self, stats: StepStats) -> None:
        """A step was committed, or the last sequences have gone without one."""

    def on_tokens(self, times: TokenTimes) -> None:
        """Requests got tokens in a step."""

    def on_finished(self, output: RequestOutput) -> None:
        """A request ended, in whatever way; `output` has all of it."""

    def shutdown(self) -> None:
        """The engine has ended, and every request before: send what is left. May come from another thread."""
