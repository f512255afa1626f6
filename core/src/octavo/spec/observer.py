"""Contract of observers: metrics, tracing, logs. They look on; they never change a token."""

from __future__ import annotations

from typing import Protocol

from octavo.request import Request, RequestOutput
from octavo.step import StepStats


class Observer(Protocol):
    """Told of what happens. An exception is logged once and the observer is dropped; no request suffers."""

    def on_request(self, request: Request) -> None:
        """A request was accepted."""
        ...

    def on_step(self, stats: StepStats) -> None:
        """A step was committed."""
        ...

    def on_finished(self, output: RequestOutput) -> None:
        """A request ended, in whatever way."""
        ...
