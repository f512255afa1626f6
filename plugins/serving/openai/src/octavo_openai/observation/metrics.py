"""What Prometheus scrapes: an observer of the engine, with names in the style of vLLM's.

Owns: `EngineMetrics`, the metrics' names, buckets and totals. Must never know: HTTP routes, how the engine works.
"""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from octavo.request import FinishReason, Request, RequestOutput
from octavo.spec import Observer
from octavo.step import ScheduledSequence, StepStats, TokenTimes
from octavo_openai.observation.status import FinishedTotals, Totals

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20)
_END_TO_END = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineMetrics(Observer):
    """Counts for one engine, in a registry of its own: two engines can live in one process.

    `octavo:…` metrics carry the label `model_name`. Text for a scrape: `exposition`. Sums for people: `totals`.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # CPU, memory and open files of this process, under everybody's names
        self._model_name = model_name
        self._finished: Tally[str] = Tally()
        self._total: Tally[str] = Tally()
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Sequences that run.")
        self._waiting = self._gauge("num_requests_waiting", "Sequences that wait to be run.")
        self._usage = self._gauge("kv_cache_usage_perc", "Part of the KV cache's blocks in use; 1 is all of them.")

    def _make_counters(self) -> None:
        self._counters = {
            name: self._counter(name, text)
            for name, text in (
                ("prompt_tokens", "Prompt tokens of requests, cached ones included."),
                (
                    "prompt_tokens_computed",
                    "Prompt tokens computed: no cached ones, those of preempted sequences again.",
                ),
                ("generation_tokens", "Tokens that were generated."),
                ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache, once for each sequence."),
                ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
                ("num_preemptions", "Sequences that had to give their blocks back and start again."),
                ("spec_decode_num_drafts", "Times that a sequence had drafts to verify."),
                ("spec_decode_num_draft_tokens", "Draft tokens that were verified."),
                ("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
            )
        }
        self._by_position = Counter(
            "octavo:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by their position.",
            ("model_name", "position"),
            registry=self.registry,
        )
        self._ends = Counter(
            "octavo:request_success",
            "Requests that ended, by the reason of their first completion.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._answers = Counter(
            "octavo:http_requests", "Answers to HTTP requests.", ("path", "status"), registry=self.registry
        )
        for reason in FinishReason:  # a series that is there from the start has a rate from the start
            self._ends.labels(self._model_name, reason.value)

    def _make_histograms(self) -> None:
        self._first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _LATENCY)
        self._between = self._histogram("inter_token_latency_seconds", "Between a sequence's tokens.", _INTER_TOKEN)
        self._end_to_end = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", _END_TO_END)
        self._queued = self._histogram("request_queue_time_seconds", "From arrival to the first step.", _END_TO_END)
        self._prefill = self._histogram("request_prefill_time_seconds", "First step to first token.", _END_TO_END)
        self._decode = self._histogram("request_decode_time_seconds", "First token to last.", _END_TO_END)
        self._prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._output_size = self._histogram("request_generation_tokens", "Tokens generated for a request.", _TOKENS)
        self._step_size = self._histogram("iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS)

    def on_request(self, request: Request) -> None:
        self._count("prompt_tokens", len(request.prompt_token_ids))
        self._prompt_size.observe(len(request.prompt_token_ids))

    def on_step(self, stats: StepStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._usage.set(stats.num_used_blocks / max(stats.num_blocks, 1))
        self._count("prompt_tokens_computed", sum(s.num_scheduled_tokens for s in stats.scheduled if not _decodes(s)))
        self._count("generation_tokens", stats.num_generated_tokens)
        self._count("prefix_cache_queries", stats.prefix_queries)
        self._count("prefix_cache_hits", stats.prefix_hits)
        self._count("num_preemptions", stats.num_preempted)
        self._count("spec_decode_num_drafts", sum(stats.verified_by_position[:1]))
        self._count("spec_decode_num_draft_tokens", stats.num_draft_tokens)
        self._count("spec_decode_num_accepted_tokens", stats.num_accepted_tokens)
        for position, accepted in enumerate(stats.accepted_by_position):
            self._by_position.labels(self._model_name, str(position)).inc(accepted)
        if stats.num_scheduled_tokens:
            self._step_size.observe(stats.num_scheduled_tokens)

    def on_tokens(self, times: TokenTimes) -> None:
        for seconds in times.time_to_first_token:
            self._first_token.observe(seconds)
        for seconds in times.inter_token_latency:
            self._between.observe(seconds)

    def on_finished(self, output: RequestOutput) -> None:
        reason = str(output.outputs[0].finish_reason)
        self._ends.labels(self._model_name, reason).inc()
        self._finished[reason] += 1
        self._output_size.observe(sum(len(completion.token_ids) for completion in output.outputs))
        metrics = output.metrics
        for histogram, seconds in (
            (self._end_to_end, metrics.end_to_end_time),
            (self._queued, metrics.queue_time),
            (self._prefill, metrics.prefill_time),
            (self._decode, metrics.decode_time),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def count_answer(self, path: str, status: int) -> None:
        """`path` is a route's own, with its parameters unfilled: what clients make up must not become labels."""
        self._answers.labels(path, str(status)).inc()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The text of a scrape and its content type: OpenMetrics where the scraper's `Accept` header asks for it."""
        if "application/openmetrics-text" in accept:
            return generate_openmetrics(self.registry), OPENMETRICS_TYPE
        return generate_latest(self.registry), TEXT_TYPE

    def totals(self) -> Totals:
        """Sums since the start."""
        total = self._total
        return Totals(
            prompt_tokens=total["prompt_tokens_computed"],
            generation_tokens=total["generation_tokens"],
            prefix_queries=total["prefix_cache_queries"],
            prefix_hits=total["prefix_cache_hits"],
            draft_tokens=total["spec_decode_num_draft_tokens"],
            accepted_tokens=total["spec_decode_num_accepted_tokens"],
            preemptions=total["num_preemptions"],
            finished=FinishedTotals(**{reason.value: self._finished[reason.value] for reason in FinishReason}),
        )

    def _count(self, name: str, amount: int) -> None:
        if amount:
            self._counters[name].inc(amount)
            self._total[name] += amount

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"octavo:{name}", text, ("model_name",), registry=self.registry).labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"octavo:{name}", text, ("model_name",), registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"octavo:{name}", text, ("model_name",), registry=self.registry, buckets=buckets)
        return made.labels(self._model_name)


def _decodes(scheduled: ScheduledSequence) -> bool:
    """Whether it computes its last token and drafts; the rest of a prompt is mostly longer."""
    return scheduled.num_scheduled_tokens == len(scheduled.draft_token_ids) + 1
