"""The kernels of layers against torch's own arithmetic, for every instruction set that the machine has."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from octavo.errors import ConfigError
from octavo.nn import apply_rotary
from octavo_cpu.layers import (
    FusedRMSNorm,
    FusedSiluAndMul,
    InPlaceRotate,
    Int4Linear,
    Int8Linear,
    Int8WeightOnlyLinear,
    PackedLinear,
    WeightMemory,
)
from octavo_cpu.plugin import CPUOptions
from octavo_cpu.transform import use_kernels

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, size: float = 1.0) -> None:
    """`size`: how large the sums are that the result is a difference of."""
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance * size, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [2, 16, 97, 130, 2048, 2050, 4100])
def test_a_product_is_that_of_torch(kernels, dtype, depth):
    depth += depth % 2 and dtype == torch.bfloat16
    for num_columns, num_rows in itertools.product([1, 7, 16, 31, 100], [1, 2, 3, 5, 6, 7, 13, 15, 40]):
        weight, x = random(num_columns, depth, dtype=dtype), random(num_rows, depth, dtype=dtype, seed=1)
        for bias in (None, random(num_columns, dtype=dtype, seed=2)):
            out = PackedLinear(WeightMemory(kernels), weight)(x, bias)
            assert_near(out, functional.linear(x, weight, bias), depth**0.5)


def test_rows_may_lie_apart(kernels):
    wide, weight = random(9, 64), random(20, 24, seed=1)
    for x in (wide[:, 8:32], wide.t()[:24].t(), wide[::2, :24]):
        assert_near(PackedLinear(WeightMemory(kernels), weight)(x, None), functional.linear(x, weight), 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linear", [PackedLinear, Int8Linear, Int8WeightOnlyLinear, Int4Linear])
def test_a_row_does_not_depend_on_the_others(kernels, linear, dtype):
    layer, x = linear(WeightMemory(kernels), random(70, 2976, dtype=dtype)), random(300, 2976, dtype=dtype, seed=1)
    whole = layer(x, None)
    for first, num_rows in itertools.product([0, 17, 280], [1, 2, 3, 4, 7, 20]):
        assert torch.equal(layer(x[first : first + num_rows], None), whole[first : first + num_rows])


def in_int8(rows: torch.Tensor) -> torch.Tensor:
    """Rows as they are when each number was rounded to a multiple of a 127th of the row's largest."""
    scale = rows.float().abs().amax(dim=1, keepdim=True) / 127
    return (rows.float() / scale).round().double() * scale.double()


def stretches_in_int8(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([in_int8(stretch) for stretch in x.split(32, dim=1)], dim=1)


def in_int4(weight: torch.Tensor) -> torch.Tensor:
    """Each 32 weights of a row as multiples of a 15th of the way from the smallest to the largest."""
    stretches = weight.float().unflatten(1, (-1, 32))
    low, high = stretches.amin(dim=2, keepdim=True), stretches.amax(dim=2, keepdim=True)
    scale, offset = ((high - low) / 15).half().double(), low.half().double()
    return (((stretches - offset) / scale.clamp(min=1e-30)).round().clamp(0, 15) * scale + offset).flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [4, 128, 2048, 2052, 4100])
def test_int8_products_are_exact(kernels, dtype, depth):
    for num_columns, num_rows in itertools.product([1, 16, 31, 100], [1, 2, 3, 5, 7, 13, 40]):
        weight, x = random(num_columns, depth, dtype=dtype), random(num_rows, depth, dtype=dtype, seed=1)
        expected = (stretches_in_int8(x) @ in_int8(weight).T).to(x.dtype)
        out = Int8Linear(WeightMemory(kernels), weight)(x, None)
        # A number halfway between two may be rounded either way.
        assert_near(out, expected, depth**0.5 / (10 if dtype == torch.float32 else 1))
        assert_near(out, functional.linear(x, weight), depth**0.5 * (1e4 if dtype == torch.float32 else 5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [1, 128, 2049])
def test_weights_alone_in_int8(kernels, dtype, depth):
    for num_columns, num_rows in itertools.product([1, 31, 100], [1, 2, 7, 15, 40]):
        weight, x = random(num_columns, depth, dtype=dtype), random(num_rows, depth, dtype=dtype, seed=1)
        out = Int8WeightOnlyLinear(WeightMemory(kernels), weight)(x, None)
        assert_near(out, (x.double() @ in_int8(weight).T).to(dtype), depth**0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [32, 64, 512, 544, 2048, 4128])
def test_weights_of_four_bits(kernels, dtype, depth):
    for num_columns, num_rows in itertools.product([1, 16, 31, 100], [1, 2, 3, 5, 7, 13, 40, 200]):
        weight, x = random(num_columns, depth, dtype=dtype), random(num_rows, depth, dtype=dtype, seed=1)
        expected = (stretches_in_int8(x) @ in_int4(weight).T).to(dtype)
        bias = random(num_columns, dtype=dtype, seed=2)
        out = Int4Linear(WeightMemory(kernels), weight)(x, bias)
        # As above, and a weight halfway between two may be rounded either way too.
        assert_near(out, expected + bias, depth**0.5 * (150 if dtype == torch.float32 else 1))


def test_weights_that_had_four_bits_keep_them(kernels):
    """As those of Q4_1, whose scales and offsets are float16, and which use the smallest and the largest number."""
    numbers = torch.randint(0, 16, (50, 4, 32), generator=torch.Generator().manual_seed(0))
    numbers[..., 0], numbers[..., 1] = 0, 15
    scale, offset = (random(50, 4, 1, dtype=torch.float16, seed=seed).float() for seed in range(2))
    weight = (numbers * scale.abs() + offset).flatten(1)
    x = torch.eye(128)
    torch.testing.assert_close(Int4Linear(WeightMemory(kernels), weight)(x, None), weight.T, atol=1e-6, rtol=1e-6)


def test_scales_of_every_kind(kernels):
    """Small ones that float16 has as denormal numbers, zero, and constant stretches."""
    weight = torch.cat([random(4, 32) * scale for scale in (1.0, 1e-4, 1e-6, 0.0)] + [torch.full((1, 32), -3.0)])
    out = Int4Linear(WeightMemory(kernels), weight)(torch.eye(32), None)
    assert ((out.double().T - in_int4(weight)).abs() <= 1e-6 * weight.abs().amax(dim=1, keepdim=True)).all()


def test_weights_that_four_bits_do_not_hold(kernels):
    for value in (1e5, torch.inf, torch.nan):
        assert not Int4Linear.admits(torch.full((4, 32), value))
    assert not Int4Linear.admits(torch.zeros(4, 48))


@pytest.mark.parametrize("linear", [Int8Linear, Int4Linear])
def test_rows_that_have_no_scale(kernels, linear):
    layer, x = linear(WeightMemory(kernels), random(20, 64)), random(3, 64)
    x[0], x[1, 5] = 0, torch.nan
    out = layer(x, torch.ones(20))
    assert torch.equal(out[0], torch.ones(20))
    assert out.isnan().all(dim=1).tolist() == [False, True, False]


def test_no_rows_at_all(kernels):
    assert PackedLinear(WeightMemory(kernels), random(5, 8))(random(0, 8), None).shape == (0, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 576, 1040])
def test_norm(kernels, dtype, size):
    weight = random(size, dtype=dtype)
    norm, plain = FusedRMSNorm(kernels, weight, 1e-5), torch.nn.RMSNorm(size, 1e-5, dtype=torch.float32)
    plain.weight.data = weight.float()
    for x in (
        random(7, size, dtype=dtype),
        random(400, 2 * size, dtype=dtype)[:, size:],
        random(3, 5, size, dtype=dtype),
    ):
        assert_near(norm(x, None), plain(x.float()).to(dtype))
        residual = random(*x.shape, dtype=dtype, seed=3)
        normed, total = norm(x, residual)
        assert torch.equal(total, x + residual)
        assert_near(normed, plain((x + residual).float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 17, 1536])
def test_gated_activation(kernels, dtype, size):
    x = random(40, 2 * size, dtype=dtype) * 30
    assert_near(FusedSiluAndMul(kernels)(x), functional.silu(x[:, :size]) * x[:, size:], 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (96, 16), (20, 10)])
def test_rotation(kernels, dtype, head_dim, half):
    angles = random(11, 1, half) * 100
    fused = random(11, 5 * head_dim, dtype=dtype)
    query, key = (part.unflatten(-1, (-1, head_dim)) for part in fused.clone().split((3 * head_dim, 2 * head_dim), -1))
    expected = [apply_rotary(x, angles.cos(), angles.sin()) for x in (query, key)]
    for out, wanted in zip(InPlaceRotate(kernels)(query, key, (angles.cos(), angles.sin())), expected, strict=True):
        assert_near(out, wanted)


def test_what_is_not_a_number_stays_in_its_row(kernels):
    x = torch.ones(3, 32)
    x[1, 3] = torch.nan
    for out in (FusedSiluAndMul(kernels)(x), FusedRMSNorm(kernels, torch.ones(32), 1e-5)(x, None)):
        assert out.isnan().any(dim=1).tolist() == [False, True, False]


def test_quantisation_is_never_left_out_silently():
    for model, options in (
        (torch.nn.Linear(4, 4, dtype=torch.float16), CPUOptions(quantization="int8")),
        (torch.nn.Linear(4, 4), CPUOptions(quantization="int4", kernels=False)),
    ):
        with pytest.raises(ConfigError, match="quantization"):
            use_kernels(model, options)


def test_a_model_that_the_kernels_cannot_serve_stays_as_it_is():
    options = CPUOptions()
    for model in (torch.nn.ReLU(), torch.nn.Linear(4, 4, dtype=torch.float16)):
        before = list(model.state_dict())
        assert use_kernels(model, options) is model
        assert list(model.state_dict()) == before


def test_weights_lie_apart_in_pieces_that_are_given_back(kernels):
    memory = WeightMemory(kernels)
    taken = [memory.take(size, dtype) for size, dtype in ((7, torch.int8), (33, torch.bfloat16), (5, torch.float32))]
    for i, tensor in enumerate(taken):
        tensor.fill_(i)
    assert [(t[0].item(), len(t), t.data_ptr() % 64) for t in taken] == [(0, 7, 0), (1, 33, 0), (2, 5, 0)]
    pieces = [
        t.untyped_storage().data_ptr()
        for t in (taken[0], memory.take(40 << 20, torch.uint8), memory.take(8, torch.uint8))
    ]
    assert [piece == pieces[0] for piece in pieces] == [True, False, True]
