"""The engine under test, and what one run of it did.

Owns: building it, running a list of requests with a cold prefix cache, the log of its steps. Must never know:
workloads, what is reported.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import ConfigError, OctavoError
from octavo.hookspecs import hookimpl
from octavo.request import RequestOutput
from octavo.spec import ModelTransform, Observer
from octavo.step import StepStats
from octavo_bench.shape import shape_of
from octavo_bench.work import ModelShape
from octavo_bench.workload import BenchRequest


class Log(Observer):
    """A plugin that looks on: the shape of the model as it was loaded, and every step."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.shape: ModelShape | None = None
        """None until the model is loaded, and where it is loaded in another process."""

    @hookimpl
    def octavo_make_observers(self, config: EngineConfig) -> list[Observer]:
        return [self]

    @hookimpl
    def octavo_transform_models(self) -> list[ModelTransform]:
        # before all others, which may pack or quantise the weights
        return [ModelTransform(name="bench", apply=self._look_at, priority=-1_000_000)]

    def _look_at(self, model: Any, options: Any) -> Any:
        self.shape = shape_of(model)
        return model

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)


@dataclass(frozen=True, slots=True)
class Run:
    """All requests, from the first one's submission to the last one's end."""

    seconds: float
    outputs: tuple[RequestOutput, ...]
    steps: tuple[StepStats, ...]

    @property
    def num_input_tokens(self) -> int:
        return sum(len(output.prompt_token_ids) for output in self.outputs)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(output.outputs[0].token_ids) for output in self.outputs)

    @property
    def first_token_seconds(self) -> float:
        """Until every request has its first token."""
        return max(output.metrics.time_to_first_token or 0.0 for output in self.outputs)

    @property
    def decode_steps(self) -> tuple[StepStats, ...]:
        """The steps without prompts: those after every request has its first token, unless one is preempted."""
        return tuple(
            step
            for step in self.steps
            if all(
                s.num_scheduled_tokens == 1 + len(s.draft_token_ids) and s.num_computed_tokens for s in step.scheduled
            )
        )

    @property
    def decode_seconds(self) -> float:
        """After every request has its first token."""
        return self.seconds - self.first_token_seconds

    @property
    def seconds_per_output_token(self) -> float | None:
        """Between one token of a request and its next, the mean of the requests; None if none has two."""
        times = [
            (output.metrics.decode_time or 0.0) / (len(output.outputs[0].token_ids) - 1)
            for output in self.outputs
            if len(output.outputs[0].token_ids) > 1
        ]
        return sum(times) / len(times) if times else None


class BenchEngine:
    """An engine with a log. Use it as a context: leaving it shuts the engine down."""

    def __init__(self, config: EngineConfig) -> None:
        self._log = Log()
        started = time.perf_counter()
        self._llm = LLM.from_config(config, [self._log])
        self.start_seconds = time.perf_counter() - started
        gc.collect()
        gc.freeze()  # as `octavo generate` does: what lives as long as the engine is not looked through again

    def __enter__(self) -> BenchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.shutdown()
        gc.unfreeze()

    @property
    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    @property
    def shape(self) -> ModelShape | None:
        return self._log.shape

    @property
    def description(self) -> dict[str, str]:
        return self._llm.engine.description

    @property
    def vocab_size(self) -> int:
        """Ids that both the model and its tokenizer have. Raises `ConfigError` if neither is known."""
        sizes = [part.vocab_size for part in (self.shape, self.tokenizer) if part is not None]
        if not sizes:
            raise ConfigError("--dataset random needs to know the vocabulary's size; take --dataset jsonl")
        return min(sizes)

    def check(self, requests: Sequence[BenchRequest]) -> None:
        """Raises `ConfigError` if a request is longer than the engine can take."""
        longest = max(requests, key=lambda request: request.num_tokens)
        if longest.num_tokens > self._llm.engine.max_model_len:
            raise ConfigError(
                f"{len(longest.prompt_token_ids)} tokens in (--prefix-len and --input-len) and "
                f"{longest.num_output_tokens} out (--output-len) make {longest.num_tokens}, and a sequence has "
                f"{self.description.get('length', f'at most {self._llm.engine.max_model_len} tokens')}; "
                f"lower them or raise --max-model-len"
            )

    def run(self, requests: Sequence[BenchRequest], params: SamplingParams) -> Run:
        """Submit all requests at once. The prefix cache is cold at the beginning.

        Raises `OctavoError` if a request fails, for a time without its tokens would say nothing.
        """
        self._llm.engine.reset_prefix_cache()
        self._log.steps = []
        prompts = [list(request.prompt_token_ids) for request in requests]
        each = [params.replace(max_tokens=request.num_output_tokens) for request in requests]
        started = time.perf_counter()
        outputs = self._llm.generate(prompts, each, use_tqdm=False)
        seconds = time.perf_counter() - started
        for output in outputs:
            if (reason := output.outputs[0].error) is not None:
                raise OctavoError(f"nothing was measured, for a request failed: {reason}")
        return Run(seconds, tuple(outputs), tuple(self._log.steps))
