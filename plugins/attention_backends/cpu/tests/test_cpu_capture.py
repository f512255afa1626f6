"""Forward passes that are replayed: which are, which are not, and that nobody can tell."""

from __future__ import annotations

import gc
import logging
import random
import weakref

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.spec import ForwardBatch
from octavo.testing.tiny_models import FAMILIES, write_tiny_model
from octavo_cpu.capture import CapturedForward
from octavo_cpu.layers import FusedRMSNorm, FusedSiluAndMul, PackedLinear, TableLookup, WeightMemory
from octavo_cpu.library import logged_calls
from octavo_cpu.program import Buffer, _Field, _place

SIZES = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96}
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=0)
PROMPTS = [{"prompt_token_ids": [3 + (5 * i + j * j) % 90 for j in range(1 + 13 * i)]} for i in range(6)]


def outputs(llm: LLM) -> list[tuple[list[int], list[float]]]:
    found = [output.outputs[0] for output in llm.generate(PROMPTS, PARAMS)]
    return [(list(o.token_ids), [p.logprob for p in o.logprobs]) for o in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_engine_is_the_same_bit_for_bit(tmp_path, family, dtype, caplog):
    folder = str(write_tiny_model(tmp_path / "model", family, **SIZES))
    plain = {"plugin_options": {"cpu": {"capture": False}}}
    with caplog.at_level(logging.INFO, logger="octavo_cpu"):
        for options in ({"num_blocks": 200}, {"num_blocks": 16, "max_num_batched_tokens": 9}):
            with LLM(folder, dtype=dtype, **options, **plain) as llm:
                expected = outputs(llm)
            with LLM(folder, dtype=dtype, **options) as llm:
                assert outputs(llm) == expected
                with logged_calls() as calls:
                    outputs(llm)
            # Only the head is still called from here; everything else comes out of the program.
            assert len({(type(call), call.weight) for _, call in calls}) == 1
    assert not [record.message for record in caplog.records if "not captured" in record.message]


class Pass(torch.nn.Module):
    """A forward pass without attention; `between` stands between two kernels."""

    vocab_size = 40

    def __init__(self, kernels, between) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.lookup = TableLookup(kernels, torch.randn(40, 64, generator=generator))
        self.up = PackedLinear(WeightMemory(kernels), torch.randn(192, 64, generator=generator))
        self.gate = FusedSiluAndMul(kernels)
        self.norm = FusedRMSNorm(kernels, torch.randn(96, generator=generator), 1e-6)
        self.between = between

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        x = self.between(self.up(self.lookup(batch.input_ids), None))
        return self.norm(self.gate(x), None)


def with_scratch(x: torch.Tensor, size: int) -> torch.Tensor:
    torch.empty(size)
    return x


def batch_of(num_tokens: int, **changes) -> ForwardBatch:
    return ForwardBatch(torch.arange(num_tokens) * 7 % 40, torch.arange(num_tokens), (), **changes)


def captured(kernels, between=lambda x: x) -> tuple[Pass, CapturedForward]:
    model = Pass(kernels, between)
    return model, CapturedForward(model, kernels)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 17, 500])
def test_a_replay_is_the_pass(kernels, num_tokens):
    model, forward = captured(kernels)
    batch = batch_of(num_tokens)
    expected = model.forward(batch)
    forward(batch_of(4))
    with logged_calls() as calls:
        found = forward(batch)
    assert torch.equal(found, expected)
    assert not calls
    again = forward(batch_of(num_tokens))
    assert num_tokens == 0 or again.data_ptr() != found.data_ptr(), "a result is the caller's"


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda x: x + 1, "aten.add.Tensor is no kernel"),
        (lambda x: x.mul_(2), "aten.mul_.Tensor is no kernel"),
        (lambda x: x if x.sum().item() < 0 else -x, "aten.sum.default is no kernel"),
        (lambda x: x[: len(x) // 2], "not a row for each token"),
        (lambda x: with_scratch(x, len(x) ** 2), "a buffer does not grow"),
    ],
)
def test_what_is_more_than_kernels_stays_as_it_was(kernels, caplog, between, reason):
    model, forward = captured(kernels, between)
    with caplog.at_level(logging.INFO, logger="octavo_cpu"):
        for num_tokens in (1, 6, 9):
            batch = batch_of(num_tokens)
            assert torch.equal(forward(batch), model.forward(batch))
    refusals = [record.message for record in caplog.records if "not captured" in record.message]
    assert [reason in message for message in refusals] == [True]


def test_what_is_done_behind_torchs_back_is_noticed(kernels, caplog):
    def between(x: torch.Tensor) -> torch.Tensor:
        x.numpy()[:, 0] = 0
        return x

    model, forward = captured(kernels, between)
    with caplog.at_level(logging.INFO, logger="octavo_cpu"):
        assert torch.equal(forward(batch_of(6)), model.forward(batch_of(6)))
    assert "other hidden states" in caplog.text or "no kernel" in caplog.text


def test_a_model_goes_with_its_last_user(kernels):
    model, forward = captured(kernels)
    model.forward = forward
    model.forward(batch_of(4))
    alive = weakref.ref(model)
    gc.disable()
    try:
        del model, forward
        assert alive() is None
    finally:
        gc.enable()


def test_adapters_and_pipeline_stages_are_not_replayed(kernels):
    _, forward = captured(kernels)
    forward(batch_of(4))
    for batch in (
        batch_of(4, adapter_ids=torch.zeros(4, dtype=torch.int32)),
        batch_of(4, intermediate={"x": torch.ones(4)}),
    ):
        with logged_calls() as calls:
            forward(batch)
        assert calls


def test_buffers_in_use_at_the_same_time_lie_apart():
    rng = random.Random(0)
    for _ in range(200):
        sizes = [64 * rng.randint(1, 6) for _ in range(rng.randint(1, 12))]
        spans = [sorted(rng.sample(range(20), 2)) for _ in sizes]
        fields = [_Field(call, 0, Buffer(i), 0, 0) for i, span in enumerate(spans) for call in span]
        places, end = _place(fields, sizes)
        assert end <= sum(sizes)
        for i, (a, b) in enumerate(spans):
            assert 0 <= places[Buffer(i)] <= end - sizes[i]
            for j, (c, d) in enumerate(spans[:i]):
                together = a <= d and c <= b
                first, second = sorted((i, j), key=lambda k: places[Buffer(k)])
                apart = places[Buffer(first)] + sizes[first] <= places[Buffer(second)]
                assert apart or not together
