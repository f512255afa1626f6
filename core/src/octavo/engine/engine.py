"""The engine that a program holds: requests in, outputs out, one step at a time.

Owns: request ids, the two processors around the core, observers. Must never know: tensors, blocks, HTTP.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.engine.core import EngineCore
from octavo.engine.input_processor import InputProcessor, Prompt
from octavo.engine.output_processor import OutputKind, OutputProcessor
from octavo.errors import InvalidRequestError
from octavo.request import FinishReason, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.spec import Observer, Tokenizer
from octavo.step import AttachRequest

logger = logging.getLogger(__name__)


class LLMEngine:
    """Requests may be added and aborted between any two steps. Not thread-safe.

    engine.add_request("a", "Hello", SamplingParams(max_tokens=8))
    while engine.has_unfinished_requests():
        for output in engine.step():
            ...
    """

    def __init__(
        self,
        core: EngineCore,
        inputs: InputProcessor,
        observers: Sequence[Observer] = (),
        description: Mapping[str, str] | None = None,
    ) -> None:
        self.core = core
        self.inputs = inputs
        self.description = dict(description or {})
        """What was chosen at start and why."""
        self._outputs = OutputProcessor(inputs.tokenizer)
        self._observers = list(observers)
        self._sequence_ids = itertools.count(1)
        self._early: list[RequestOutput] = []

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.inputs.tokenizer

    @property
    def max_model_len(self) -> int:
        return self.inputs.max_model_len

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
        if not isinstance(request_id, str) or not (params is None or isinstance(params, SamplingParams)):
            raise InvalidRequestError("request_id", "add_request takes a text as id, a prompt and SamplingParams")
        if request_id in self._outputs:
            raise InvalidRequestError("request_id", f"{request_id!r} is still running; abort it or choose another")
        request = self.inputs.make_request(request_id, prompt, params or self.inputs.default_sampling_params())
        sequences = [
            AttachRequest(next(self._sequence_ids), request, index) for index in range(request.sampling_params.n)
        ]
        ids = [s.sequence_id for s in sequences]
        try:
            self._outputs.add(request, ids, kind)
            self.core.add(sequences)
        except BaseException:
            self._outputs.abort(request_id)
            self.core.finish(ids, FinishReason.ABORT)
            raise
        self._early = [o for o in self._early if o.request_id != request_id]  # an id used anew means the new request
        self._tell(lambda observer: observer.on_request(request))

    def abort_request(self, request_id: str, *, want_output: bool = True) -> bool:
        """End a request; its last output comes with the next step, if wanted. False if it is not running."""
        outputs, sequence_ids = self._outputs.abort(request_id)
        self.core.finish(sequence_ids, FinishReason.ABORT)
        self._tell_finished(outputs)
        if want_output:
            self._early += outputs
        return bool(sequence_ids)

    def step(self) -> list[RequestOutput]:
        """Run one step; the outputs of the requests that it changed."""
        new: list[RequestOutput] = []
        if self.core.has_work:
            before = self.core.last_stats
            new, stopped = self._outputs.take(self.core.step())
            self.core.finish(stopped, FinishReason.STOP)
            stats = self.core.last_stats
            if stats is not before:
                self._tell(lambda observer: observer.on_step(stats))
            self._tell_finished(new)
        early, self._early = self._early, []
        return early + new

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep what they use."""
        self.core.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Recompute all bookkeeping and compare; for tests. Raises `AssertionError`."""
        self.core.check_integrity()

    def shutdown(self) -> None:
        self.core.shutdown()

    def _tell_finished(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            if output.finished:
                self._tell(lambda observer, output=output: observer.on_finished(output))

    def _tell(self, call: Callable[[Any], None]) -> None:
        """Call every observer; one that fails is dropped, and no request suffers."""
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception:
                logger.exception("observer %r failed and is dropped", observer)
                self._observers.remove(observer)
