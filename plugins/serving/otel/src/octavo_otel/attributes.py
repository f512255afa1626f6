"""What a span says about a request: names and numbers, never a text that somebody wrote or the model did.

The names are those of OpenTelemetry's semantic conventions for generative AI (`gen_ai-spans`, inference); those of
`gen_ai.latency.…`, in seconds, and `gen_ai.request.id` are vLLM's, whose dashboards they fit.
Owns: the attributes. Must never know: OpenTelemetry's SDK, when requests end.
"""

from __future__ import annotations

from typing import TypeAlias

from octavo.request import FinishReason, Request, RequestMetrics, RequestOutput

Attributes: TypeAlias = dict[str, str | int | float | list[str]]

SYSTEM = "octavo"
_MAX_INT = 2**63
"""Whole numbers travel as int64; a seed may be larger."""


def request_attributes(request: Request, model: str | None) -> Attributes:
    """What was asked for. Options that change nothing are left out."""
    params = request.sampling_params
    attributes: Attributes = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.system": SYSTEM,
        "gen_ai.provider.name": SYSTEM,
        "gen_ai.request.id": as_utf8(request.request_id),
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
    }
    if model:
        attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = as_utf8(model)
    if params.top_k > 0:
        attributes["gen_ai.request.top_k"] = float(params.top_k)
    if params.frequency_penalty:
        attributes["gen_ai.request.frequency_penalty"] = params.frequency_penalty
    if params.presence_penalty:
        attributes["gen_ai.request.presence_penalty"] = params.presence_penalty
    if params.n != 1:
        attributes["gen_ai.request.choice.count"] = params.n
    if params.seed is not None and params.seed < _MAX_INT:
        attributes["gen_ai.request.seed"] = params.seed
    return attributes


def output_attributes(output: RequestOutput) -> Attributes:
    """What came of it."""
    metrics = output.metrics
    attributes: Attributes = {
        "gen_ai.usage.output_tokens": sum(len(completion.token_ids) for completion in output.outputs),
        "gen_ai.usage.cache_read.input_tokens": metrics.num_cached_tokens,
        "gen_ai.response.finish_reasons": [str(c.finish_reason) for c in output.outputs if c.finish_reason],
        "octavo.num_preemptions": metrics.num_preemptions,
    }
    for name, seconds in _latencies(metrics).items():
        if seconds is not None:
            attributes[f"gen_ai.latency.{name}"] = seconds
    return attributes


def failure_of(output: RequestOutput | None) -> tuple[str, str] | None:
    """`error.type` and the message of the first completion that failed; without an output, the engine stopped first.

    The types are `invalid_request_error` where the request itself was at fault, `server_error`, and `engine_stopped`.
    """
    if output is None:
        return "engine_stopped", "the engine stopped before the request had ended"
    failed = next((c for c in output.outputs if c.finish_reason is FinishReason.ERROR), None)
    if failed is None:
        return None
    kind = "server_error" if failed.error_field is None else "invalid_request_error"
    return kind, as_utf8(failed.error or "")


def as_utf8(text: str) -> str:
    """`text` without lone surrogates, which OTLP cannot carry: a client's id or a path may hold some."""
    return text.encode("utf-8", "replace").decode()


def _latencies(metrics: RequestMetrics) -> dict[str, float | None]:
    prefill, decode = metrics.prefill_time, metrics.decode_time
    return {
        "time_in_queue": metrics.queue_time,
        "time_to_first_token": metrics.time_to_first_token,
        "time_in_model_prefill": prefill,
        "time_in_model_decode": decode,
        "time_in_model_inference": None if prefill is None or decode is None else prefill + decode,
    }
