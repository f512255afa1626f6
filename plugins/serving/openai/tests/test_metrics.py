"""Metrics: what is counted, that gauges come back to zero, names and labels that nobody else makes up."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from octavo.testing.table_model import table_llm
from octavo_openai.observation.metrics import EngineMetrics
from octavo_openai.observation.status import FinishedTotals


def samples(metrics: EngineMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Values by the labels besides `model_name`."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        for sample in family.samples:
            if sample.name == f"octavo:{name}":
                rest = {k: v for k, v in sample.labels.items() if k != "model_name"}
                found[tuple(rest.values())] = sample.value
    return found


def value(metrics: EngineMetrics, name: str) -> float:
    (only,) = samples(metrics, name).values()
    return only


def test_a_run_is_counted() -> None:
    metrics = EngineMetrics("m")
    llm = table_llm(block_size=4, drafter="none")
    llm.engine.observe(metrics)
    params = llm.default_sampling_params(max_tokens=5, ignore_eos=True, temperature=0)
    llm.generate([[5, 6, 7, 8] * 5] * 2, params)
    llm.generate([[5, 6, 7, 8] * 5], params.replace(n=2))
    assert value(metrics, "prompt_tokens_total") == 60
    assert value(metrics, "generation_tokens_total") == 20
    assert value(metrics, "prefix_cache_queries_total") == 80
    hits = value(metrics, "prefix_cache_hits_total")
    assert 0 < hits <= 80
    assert value(metrics, "prompt_tokens_computed_total") == 80 - hits
    assert samples(metrics, "request_success_total") == {("stop",): 0, ("length",): 3, ("abort",): 0, ("error",): 0}
    assert value(metrics, "time_to_first_token_seconds_count") == 3
    assert value(metrics, "inter_token_latency_seconds_count") == 16
    assert value(metrics, "request_generation_tokens_sum") == 20
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert value(metrics, f"{name}_seconds_count") == 3
    totals = metrics.totals()
    assert (totals.generation_tokens, totals.prompt_tokens, totals.prefix_hits) == (20, 80 - hits, hits)
    assert totals.finished == FinishedTotals(stop=0, length=3, abort=0, error=0)


def test_gauges_come_back_to_zero_after_aborts() -> None:
    metrics = EngineMetrics("m")
    llm = table_llm(block_size=4, max_num_seqs=2)
    engine = llm.engine
    engine.observe(metrics)
    for i in range(4):
        engine.add_request(str(i), [5, 6, 7, 8], llm.default_sampling_params(max_tokens=50, ignore_eos=True))
    engine.step()
    assert value(metrics, "num_requests_running") == 2
    assert value(metrics, "num_requests_waiting") == 2
    assert value(metrics, "kv_cache_usage_perc") > 0
    for i in range(4):
        engine.abort_request(str(i))
    engine.step()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(metrics, name) == 0
    assert samples(metrics, "request_success_total")[("abort",)] == 4


def test_two_engines_have_metrics_of_their_own() -> None:
    first, second = EngineMetrics("a"), EngineMetrics("b")
    first.count_answer("/v1/models", 200)
    assert samples(first, "http_requests_total") == {("/v1/models", "200"): 1}
    assert samples(second, "http_requests_total") == {}


def test_both_forms_of_the_text() -> None:
    metrics = EngineMetrics("m")
    plain, kind = metrics.exposition("*/*")
    assert kind.startswith("text/plain; version=0.0.4")
    assert b'octavo:num_requests_running{model_name="m"} 0.0' in plain
    openmetrics, kind = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert openmetrics.endswith(b"# EOF\n")
