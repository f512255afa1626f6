"""How much work is counted: by hand, by brute force, and summed over real runs against what the requests imply."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest

from octavo import SamplingParams
from octavo.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from octavo.step import ScheduledSequence, StepStats
from octavo_bench.engine import BenchEngine
from octavo_bench.machine import measure_machine
from octavo_bench.roofline import Machine, limit_of
from octavo_bench.work import AttentionShape, ModelShape, attended_pairs, positions_read, step_work
from octavo_bench.workload import WORKLOADS, Lengths, random_requests

SHAPE = ModelShape(
    dtype="float32",
    device="cpu",
    vocab_size=1000,
    body_weights=5_000,
    body_bytes=20_400,
    head_weights=8_000,
    head_bytes=32_000,
    embedding_row_bytes=32,
    attention=(AttentionShape(None, 64, 128), AttentionShape(4, 32, 16)),
)


def _stats(spans: list[tuple[int, int]], num_sampled: int, num_drafts: int = 0) -> StepStats:
    return StepStats(
        step_id=0,
        duration=1.0,
        num_scheduled_tokens=sum(n for _, n in spans),
        num_generated_tokens=num_sampled,
        num_running=len(spans),
        num_waiting=0,
        num_preempted=0,
        num_draft_tokens=num_drafts,
        num_accepted_tokens=0,
        num_used_blocks=0,
        num_blocks=0,
        prefix_queries=0,
        prefix_hits=0,
        num_sampled_sequences=num_sampled,
        scheduled=tuple(ScheduledSequence(i, c, n, (), ()) for i, (c, n) in enumerate(spans)),
    )


def test_a_step_counted_by_hand() -> None:
    """A prompt of three tokens that is not yet whole, and a decode after ten."""
    work = step_work(SHAPE, _stats([(0, 3), (10, 1)], num_sampled=1))
    # pairs: 1 + 2 + 3 and 11 in the full layers; 1 + 2 + 3 and 4 under the window of four
    assert work.num_operations == 2 * 5_000 * 4 + 2 * 8_000 + 64 * 17 + 32 * 10
    # KV: four tokens written; ten read in the full layers, three under the window
    kv = 128 * (4 + 10) + 16 * (4 + 3)
    assert work.num_bytes == 20_400 + 4 * 32 + 32_000 + 4 * 1_000 + kv


def test_no_head_without_a_wanted_token_and_one_row_a_draft() -> None:
    prompt = step_work(SHAPE, _stats([(0, 3)], num_sampled=0))
    assert prompt.num_bytes == 20_400 + 3 * 32 + 3 * (128 + 16)
    assert prompt.num_operations == 2 * 5_000 * 3 + (64 + 32) * 6
    with_drafts = step_work(SHAPE, _stats([(0, 3)], num_sampled=1, num_drafts=2))
    assert with_drafts.num_operations - prompt.num_operations == 2 * 8_000 * 3
    assert with_drafts.num_bytes - prompt.num_bytes == 32_000 + 3 * 4 * 1_000


@pytest.mark.parametrize("window", [None, 1, 2, 5, 9])
def test_pairs_and_reads_by_brute_force(window: int | None) -> None:
    def seen(position: int) -> set[int]:
        return {p for p in range(position + 1) if window is None or position - p < window}

    for computed, scheduled in itertools.product(range(8), range(1, 8)):
        visible = [seen(position) for position in range(computed, computed + scheduled)]
        assert attended_pairs(computed, scheduled, window) == sum(map(len, visible))
        read = {p for positions in visible for p in positions if p < computed}
        assert positions_read([(computed, scheduled)], window, 0) == len(read)


@pytest.mark.parametrize("window", [None, 1, 3, 6])
@pytest.mark.parametrize("shared", [0, 1, 4, 7])
def test_a_shared_prefix_is_read_once_by_brute_force(window: int | None, shared: int) -> None:
    for lengths in itertools.product(range(10), repeat=3):
        read = {
            ("shared", p) if p < shared else (i, p)
            for i, computed in enumerate(lengths)
            for p in range(computed)
            if window is None or computed - p < window
        }
        counted = positions_read([(computed, 1) for computed in lengths], window, shared)
        if window is None:
            assert counted == len(read)
        else:  # windows may leave gaps in the shared part, which is counted from its first to its last position
            assert len(read) <= counted <= len(read) + shared


def test_the_limit_is_the_sum_of_each_steps_bottleneck() -> None:
    machine = Machine(bytes_per_second=1e6, operations_per_second=1e6)
    prompt, decode = _stats([(0, 50)], 1), _stats([(50, 1)], 1)
    works = [step_work(SHAPE, step) for step in (prompt, decode)]
    assert works[0].num_operations > works[0].num_bytes, "the prompt is bound by operations"
    assert works[1].num_operations < works[1].num_bytes, "the decode is bound by bytes"
    limit = limit_of(SHAPE, [prompt, decode], machine)
    assert limit.seconds == pytest.approx((works[0].num_operations + works[1].num_bytes) / 1e6)
    assert (limit.num_bytes, limit.num_operations) == (
        works[0].num_bytes + works[1].num_bytes,
        works[0].num_operations + works[1].num_operations,
    )
    assert limit_of(SHAPE, [], machine).seconds == 0


def _engine(folder, **scheduler: int) -> BenchEngine:
    return BenchEngine(
        EngineConfig(
            model=ModelConfig(path=str(folder), dtype="float32"),
            cache=CacheConfig(num_blocks=256),
            scheduler=SchedulerConfig(**scheduler),
            parallel=ParallelConfig(num_threads=1),
        )
    )


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {"num_hidden_layers": 3}),
    ],
)
def test_the_shape_is_what_the_config_implies(tiny_model, family: str, changes: dict) -> None:
    folder = tiny_model(family, **changes)
    c = json.loads((folder / "config.json").read_text())
    hidden, inner, dim, layers = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["num_hidden_layers"]
    queries, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    matrices = layers * (hidden * (2 * queries + 2 * keys) + 3 * hidden * inner)
    vectors = layers * 2 * hidden + hidden
    vectors += layers * {"qwen2": queries + 2 * keys, "qwen3": 2 * dim}.get(family, 0)
    with _engine(folder) as engine:
        shape = engine.shape
    assert shape == ModelShape(
        dtype="float32",
        device="cpu",
        vocab_size=c["vocab_size"],
        body_weights=matrices,
        body_bytes=4 * (matrices + vectors),
        head_weights=c["vocab_size"] * hidden,
        head_bytes=4 * c["vocab_size"] * hidden,
        embedding_row_bytes=0 if c["tie_word_embeddings"] else 4 * hidden,
        attention=(AttentionShape(c.get("sliding_window"), layers * 4 * queries, layers * 2 * keys * 4),),
    )


@pytest.mark.parametrize("scheduler", [{}, {"max_num_batched_tokens": 32, "max_num_seqs": 3}])
def test_operations_of_a_run_are_what_its_requests_imply(tiny_model, scheduler: dict) -> None:
    """However the scheduler cuts it up, each position but the last is computed once and sees all before it."""
    workload = replace(WORKLOADS["w1"], input_len=Lengths(5, 40), output_len=Lengths(1, 8))
    with _engine(tiny_model(), **scheduler) as engine:
        requests = random_requests(workload, 6, engine.vocab_size, 0)
        params = SamplingParams(temperature=0, ignore_eos=True)
        runs = [engine.run(requests, params) for _ in range(2)]
        shape = engine.shape
    assert shape is not None
    (attention,) = shape.attention
    expected = 0
    for request in requests:
        computed = request.num_tokens - 1
        expected += 2 * shape.body_weights * computed + 2 * shape.head_weights * request.num_output_tokens
        expected += attention.operations_per_pair * computed * (computed + 1) // 2
    for run in runs:  # the second one finds nothing in the prefix cache either
        limit = limit_of(shape, run.steps, Machine(1.0, math.inf))
        assert limit.num_operations == expected
        assert limit.num_bytes == limit.seconds
        assert limit.num_bytes >= len(run.steps) * shape.body_bytes
        assert [len(o.outputs[0].token_ids) for o in run.outputs] == [r.num_output_tokens for r in requests]
        assert sum(len(s.scheduled) == 0 for s in run.steps) == 0


def test_tokens_found_in_the_prefix_cache_are_no_work(tiny_model) -> None:
    workload = replace(WORKLOADS["w3"], input_len=Lengths(4, 4), output_len=Lengths(2, 2), prefix_len=64)
    with _engine(tiny_model(), max_num_seqs=1) as engine:
        requests = random_requests(workload, 3, engine.vocab_size, 0)
        run = engine.run(requests, SamplingParams(temperature=0, ignore_eos=True))
    scheduled = sum(step.num_scheduled_tokens for step in run.steps)
    assert sum(output.metrics.num_cached_tokens for output in run.outputs) == 2 * 64
    assert scheduled == 3 * (64 + 4 + 2 - 1) - 2 * 64


def test_the_machine_is_measured() -> None:
    machine = measure_machine("float32", num_bytes=2**16, shapes=((8, 16, 16), (4, 4, 4)), seconds=0.0)
    assert 0 < machine.bytes_per_second < math.inf
    assert 0 < machine.operations_per_second < math.inf
    other = Machine(machine.bytes_per_second * 2, machine.operations_per_second / 2)
    assert machine.best_with(other) == Machine(other.bytes_per_second, machine.operations_per_second)
