"""The engine that a program holds: requests in, outputs out, one step at a time.

Owns: request ids, the two processors around the core, observers. Must never know: tensors, blocks, HTTP.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.engine.client import EngineClient
from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputKind, OutputProcessor, RequestState
from octavo.errors import InvalidRequestError
from octavo.request import FinishReason, Prompt, Request, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.spec import Observer, Tokenizer
from octavo.step import StepReport

logger = logging.getLogger(__name__)


class LLMEngine:
    """Requests may be added and aborted between any two steps. Not thread-safe, but for `make_request`.

    engine.add_request("a", "Hello", SamplingParams(max_tokens=8))
    while engine.has_unfinished_requests():
        for output in engine.step():
            ...
    """

    def __init__(
        self,
        core: EngineClient,
        inputs: InputProcessor,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.core = core
        self.inputs = inputs
        self.description = dict(core.facts.description)
        """What was chosen at start and why."""
        self._outputs = OutputProcessor(inputs.tokenizer)
        self._observers = list(observers)
        self._sequence_ids = itertools.count(1)
        self._early: list[RequestState] = []
        """Aborted requests whose last output the next step returns."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.inputs.tokenizer

    @property
    def max_model_len(self) -> int:
        return self.inputs.max_model_len

    @property
    def num_unfinished(self) -> int:
        """Live requests."""
        return len(self._outputs)

    @property
    def num_waiting(self) -> int:
        """Live requests of which no step has computed anything yet, as far as has been told."""
        return sum(state.first_scheduled_time is None for state in self._outputs)

    def observe(self, observer: Observer) -> None:
        """Tell one more observer, besides those of plugins, from now on."""
        self._observers.append(observer)

    def has_unfinished_requests(self) -> bool:
        return bool(self._outputs) or bool(self._early)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        kind: OutputKind = OutputKind.CUMULATIVE,
    ) -> None:
        """Queue a request. `params=None` takes what the model's generation config recommends.

        Raises `InvalidRequestError` naming the field; the engine is then as before.
        """
        self.submit(self.make_request(request_id, prompt, params), kind)

    def make_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Request:
        """A validated request, to be submitted. Thread-safe. Raises `InvalidRequestError` naming the field."""
        if not isinstance(request_id, str) or not (params is None or isinstance(params, SamplingParams)):
            raise InvalidRequestError("request_id", "a request takes a text as id, a prompt and SamplingParams")
        params = params or self.inputs.default_sampling_params()
        return self.inputs.make_request(request_id, prompt, params, trace_headers)

    def submit(self, request: Request, kind: OutputKind) -> RequestState:
        """Queue a request. Raises `InvalidRequestError` if its id is in use, or for a record that cannot be served."""
        self.inputs.check(request)
        request_id = request.request_id
        if request_id in self._outputs:
            raise InvalidRequestError("request_id", f"{request_id!r} is still running; abort it or choose another")
        ids = [next(self._sequence_ids) for _ in range(request.sampling_params.n)]
        try:
            state = self._outputs.add(request, ids, kind)
            self.core.add(request, ids)
        except BaseException:
            self._outputs.abort(request_id)
            self.core.finish(ids, FinishReason.ABORT)
            raise
        self._early = [s for s in self._early if s.request.request_id != request_id]  # an id used anew is the new one's
        self._tell(lambda observer: observer.on_request(request))
        return state

    def abort_request(self, request_id: str, *, want_output: bool = True, error: str | None = None) -> bool:
        """End a request, with an error if there is one; its last output comes with the next step, if wanted.

        False if it is not running.
        """
        state, sequence_ids = self._outputs.abort(request_id, error)
        if state is None:
            return False
        self.core.finish(sequence_ids, FinishReason.ABORT)
        self._tell_finished([state])
        if want_output:
            self._early.append(state)
        return True

    def abort_all(self, error: str) -> list[RequestState]:
        """End every live request with an error; what they have come to."""
        live = list(self._outputs)
        for state in live:
            self.abort_request(state.request.request_id, want_output=False, error=error)
        return live

    def step(self) -> list[RequestOutput]:
        """Run one step; the outputs of the requests that it changed."""
        changed = self.advance(self.core.step()) if self.core.has_news else []
        early, self._early = self._early, []
        return [state.output() for state in (*early, *changed) if state.is_due]

    def advance(self, report: StepReport) -> list[RequestState]:
        """Take in what a step of the core changed; the requests that it concerns."""
        progress = self._outputs.take(report.updates)
        if progress.stopped:
            self.core.finish(progress.stopped, FinishReason.STOP)
        if report.stats is not None:
            self._tell(lambda observer: observer.on_step(report.stats))
        if report.updates:
            self._tell(lambda observer: observer.on_tokens(progress.times))
        self._tell_finished(progress.changed)
        return progress.changed

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep what they use."""
        self.core.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Recompute all bookkeeping and compare; for tests. Raises `AssertionError`."""
        self.core.check_integrity()

    def shutdown(self) -> None:
        """End the core; whatever still runs fails."""
        self.abort_all("the engine was shut down")
        self.core.shutdown()
        self._tell(lambda observer: observer.shutdown())

    def _tell_finished(self, states: Sequence[RequestState]) -> None:
        for state in states:
            if state.finished and self._observers:
                whole = state.output(OutputKind.FINAL)
                self._tell(lambda observer, whole=whole: observer.on_finished(whole))

    def _tell(self, call: Callable[[Any], None]) -> None:
        """Call every observer; one that fails is dropped, and no request suffers."""
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception:
                logger.exception("observer %r failed and is dropped", observer)
                self._observers.remove(observer)
