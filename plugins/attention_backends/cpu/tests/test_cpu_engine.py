"""The engine on the kernels against the engine without them."""

from __future__ import annotations

import json
import logging

import pytest

from octavo import LLM, SamplingParams
from octavo.cli import main
from octavo.testing.tiny_models import FAMILIES, write_tiny_model
from octavo_cpu import build
from octavo_cpu.library import INT4, INT8, INT8_WEIGHT_ONLY, LinearCall, logged_calls

PLAIN = {"attention": {"backend": "torch_sdpa"}, "plugin_options": {"cpu": {"kernels": False}}}
SIZES = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
PROMPTS = [{"prompt_token_ids": [3 + (7 * i + j * j) % 90 for j in range(1 + 11 * i)]} for i in range(9)]


def tokens(folder, params: SamplingParams, **options) -> list[tuple[int, ...]]:
    with LLM(str(folder), **{"num_blocks": 200, **options}) as llm:
        return [tuple(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params)]


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    return write_tiny_model(tmp_path / "model", request.param, **SIZES)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=7, max_tokens=24, ignore_eos=True),
    ],
)
def test_tokens_are_those_of_the_reference(folder, params):
    expected = tokens(folder, params, dtype="float32", **PLAIN)
    for options in ({}, {"max_num_batched_tokens": 16}, {"max_num_seqs": 2, "num_blocks": 16}):
        assert tokens(folder, params, **{"dtype": "float32", **options}) == expected


def test_logprobs_do_not_depend_on_batch_chunks_or_prefix(tmp_path):
    """Bit for bit, which no other backend promises."""
    folder = write_tiny_model(tmp_path / "model", **SIZES)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)

    def logprobs(llm: LLM, prompts) -> list[list[float]]:
        outputs = llm.generate(prompts, params)
        return [[p.logprob for p in output.outputs[0].logprobs] for output in outputs]

    for dtype in ("float32", "bfloat16"):
        with LLM(str(folder), dtype=dtype, num_blocks=200) as llm:
            together = logprobs(llm, PROMPTS)
            assert logprobs(llm, PROMPTS) == together  # prefixes are cached now
        with LLM(
            str(folder), dtype=dtype, num_blocks=200, max_num_batched_tokens=7, enable_prefix_caching=False
        ) as llm:
            assert [logprobs(llm, [prompt])[0] for prompt in PROMPTS] == together


@pytest.mark.parametrize("quantization", ["int8", "int8_weight_only", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [100, 97])
def test_quantised_layers(tmp_path, quantization, dtype, size):
    """Each has the product that its size admits, and what holds for others holds for them."""
    folder = write_tiny_model(tmp_path / "model", **SIZES | {"intermediate_size": size})
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)

    def logprobs(prompts, **changes) -> list[list[float]]:
        options = {"cpu": {"quantization": quantization, **changes.pop("cpu", {})}}
        with LLM(str(folder), dtype=dtype, num_blocks=200, plugin_options=options, **changes) as llm:
            outputs = llm.generate(prompts, params)
            return [[p.logprob for p in output.outputs[0].logprobs] for output in outputs]

    together = logprobs(PROMPTS)
    with logged_calls() as calls:
        assert logprobs(PROMPTS, cpu={"capture": False}) == together
    assert logprobs(PROMPTS, max_num_batched_tokens=7, enable_prefix_caching=False) == together
    assert [logprobs([prompt])[0] for prompt in PROMPTS[:2]] == together[:2]

    linears = [call for _, call in calls if isinstance(call, LinearCall)]
    assert {call.depth for call in linears} == {64, size}
    for call in linears:
        is_head = call.num_columns == max(c.num_columns for c in linears)
        in_four_bits = quantization == "int4" and call.depth == 64 and not is_head
        eight = INT8_WEIGHT_ONLY if quantization == "int8_weight_only" or call.depth % 4 else INT8
        assert call.weight_dtype == (INT4 if in_four_bits else eight)


def test_it_is_what_auto_takes(tmp_path):
    with LLM(str(write_tiny_model(tmp_path / "model", **SIZES)), num_blocks=20) as llm:
        assert llm.engine.description["attention"].startswith("cpu for 2 layers")


def test_without_a_compiler_the_engine_runs_and_says_so(tmp_path, monkeypatch, caplog):
    folder = write_tiny_model(tmp_path / "model", **SIZES)
    params = SamplingParams(temperature=0, max_tokens=5)
    expected = tokens(folder, params)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    for cached in (build.library, build.unavailable):
        cached.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert tokens(folder, params) == expected
            assert tokens(folder, params) == expected
        assert [r.message for r in caplog.records if "no-such-compiler" in r.message] == [caplog.records[0].message]
    finally:
        for cached in (build.library, build.unavailable):
            cached.cache_clear()


def test_the_doctor_names_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path))
    for cached in (build.library, build.unavailable):
        cached.cache_clear()
    try:
        assert main(["plugins", "doctor", "--json"]) == 1
    finally:
        for cached in (build.library, build.unavailable):
            cached.cache_clear()
    problems = json.loads(capsys.readouterr().out)
    assert any("no-such-compiler" in p["problem"] for p in problems)
