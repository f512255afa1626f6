"""Real architectures, tiny and random: the engine against dense attention that recomputes everything, in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.config import EngineConfig
from octavo.loading.locate import open_source
from octavo.nn import attention_layers
from octavo.plugins import load_extensions
from octavo.testing.naive import NextLogits, dense_next_logits
from octavo.testing.tiny_models import FAMILIES
from octavo.testing.workload import Job, Reference, run_jobs

TinyModel = Callable[..., Path]
CHUNKS = {
    "1": {"long_prefill_token_threshold": 1},
    "7": {"max_num_batched_tokens": 7},
    "16": {"long_prefill_token_threshold": 16, "max_num_batched_tokens": 40},
    "64": {"max_num_batched_tokens": 64},
    "whole": {},
}
ROOM = {"ample": 200, "tight": 19}
"""Blocks of 4: the longest job needs 18 of them, and there is the null block."""


def make_llm(path: Path, **keywords: Any) -> LLM:
    defaults = {"dtype": "float32", "device": "cpu", "backend": "torch_sdpa", "block_size": 4, "num_threads": 1}
    return LLM(str(path), **(defaults | {"num_blocks": ROOM["ample"]} | keywords))


def make_jobs(vocab_size: int) -> list[Job]:
    """Some share a prefix, one is a single token, some exceed the sliding window; greedy and seeded by turns."""
    rng = random.Random(7)
    stem = [rng.randrange(3, vocab_size) for _ in range(40)]
    jobs = []
    for i, (shared, own) in enumerate([(32, 9), (32, 1), (0, 1), (16, 40), (0, 33), (40, 1)]):
        params = SamplingParams(
            temperature=[0.0, 1.0, 0.7][i % 3],
            top_p=0.9 if i == 4 else 1.0,
            seed=i,
            max_tokens=14,
            ignore_eos=i % 2 == 0,
            logprobs=2,
            prompt_logprobs=1 if i == 4 else None,
        )
        prompt = stem[:shared] + [rng.randrange(3, vocab_size) for _ in range(own)]
        jobs.append(Job(prompt=tuple(prompt), params=params, arrives=[0, 0, 1, 3, 3, 6][i]))
    return jobs


QUICK = ("mistral",)
"""The one with a sliding window; what else tells families apart has little to do with the engine."""


@pytest.fixture(
    scope="module", params=[pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES]
)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(family: str, tiny_model: TinyModel) -> tuple[Path, NextLogits, dict[str, Any]]:
    """Folder, its naive engine, and answers that the tests of one family share."""
    path = tiny_model(family)
    extensions = load_extensions(EngineConfig())
    return path, dense_next_logits(open_source(str(path), extensions.weight_formats), extensions), {}


def valid_tokens(llm: LLM) -> int | None:
    tokenizer = llm.get_tokenizer()
    return tokenizer.vocab_size if tokenizer is not None else None


def check_all(llm: LLM, next_logits: NextLogits, known: dict[str, Any], jobs: list[Job], rounds: int = 1) -> list[Any]:
    reference = Reference(next_logits, llm.engine, num_valid_tokens=valid_tokens(llm))
    reference._known = known
    outputs: list[Any] = []
    for _ in range(rounds):
        outputs = run_jobs(llm.engine, jobs)
        for job, output in zip(jobs, outputs, strict=True):
            reference.check(job, output)
    return outputs


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("room", ROOM)
def test_same_tokens_as_dense_attention(model: Any, chunk: str, room: str) -> None:
    """Cold, then with a warm cache; in the tight room sequences are preempted."""
    path, next_logits, known = model
    llm = make_llm(path, num_blocks=ROOM[room], max_model_len=72, **CHUNKS[chunk])
    outputs = check_all(llm, next_logits, known, make_jobs(llm.engine.inputs._vocab_size - 11), rounds=2)
    if room == "ample":
        assert [o.metrics.num_cached_tokens for o in outputs] == [40, 32, 0, 52, 0, 40]
    elif chunk == "whole":
        assert sum(o.metrics.num_preemptions for o in outputs) > 0


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_block_size_and_caching_do_not_matter(model: Any, block_size: int, enable_prefix_caching: bool) -> None:
    path, next_logits, known = model
    llm = make_llm(path, block_size=block_size, enable_prefix_caching=enable_prefix_caching, max_model_len=72)
    check_all(llm, next_logits, known, make_jobs(llm.engine.inputs._vocab_size - 11))


def kv_caches(llm: LLM) -> list[torch.Tensor]:
    caches = [layer.kv_cache for layer in attention_layers(llm.engine.core._executor._model).values()]
    return [cache for cache in caches if cache is not None]


def test_what_the_cache_held_before_does_not_leak(model: Any) -> None:
    path, next_logits, known = model
    for chunk in ("7", "whole"):
        llm = make_llm(path, max_model_len=72, **CHUNKS[chunk])
        for cache in kv_caches(llm):
            cache.fill_(torch.nan)
        check_all(llm, next_logits, known, make_jobs(llm.engine.inputs._vocab_size - 11))


def test_the_comparison_notices_one_wrong_slot(model: Any) -> None:
    """The suite can fail: one position of one sequence changed in the cache is seen in what follows."""
    path, next_logits, _ = model
    llm = make_llm(path, max_model_len=72)
    job = make_jobs(llm.engine.inputs._vocab_size - 11)[0]

    def corrupt(step: int) -> None:
        if step == 1:
            for cache in kv_caches(llm):  # [2, num_blocks, block_size, …]; the prompt's 41 tokens lie in blocks 1 to 11
                cache[:, 11, 0] += 1.0

    outputs = run_jobs(llm.engine, [job], after_step=corrupt)
    reference = Reference(next_logits, llm.engine, num_valid_tokens=valid_tokens(llm))
    with pytest.raises(AssertionError):
        reference.check(job, outputs[0])
