"""Rotation against complex multiplication; frequencies against transformers'; purity of the dynamic scaling."""

from __future__ import annotations

import cmath
import itertools

import pytest
import torch

from octavo.errors import ModelLoadError
from octavo.nn import RotaryEmbedding, RotaryParameters, apply_rotary, inverse_frequencies

CPU = torch.device("cpu")


def parameters(head_dim: int = 16, **config) -> RotaryParameters:
    return RotaryParameters.from_config({"max_position_embeddings": 64, **config}, head_dim)


@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_rotation_is_complex_multiplication(partial):
    head_dim, theta = 8, 100.0
    p = parameters(head_dim, rope_theta=theta, partial_rotary_factor=partial)
    assert p.rotary_dim == head_dim * partial
    half = p.rotary_dim // 2
    positions = torch.tensor([0, 5, 63, 5])
    x = torch.randn(4, 3, head_dim, generator=torch.Generator().manual_seed(0))
    out = apply_rotary(x, *RotaryEmbedding(p, 64, CPU)(positions))
    for token, head in itertools.product(range(4), range(3)):
        row = x[token, head].tolist()
        expected = list(row)
        for i in range(half):
            angle = positions[token].item() * theta ** (-2 * i / p.rotary_dim)
            turned = complex(row[i], row[i + half]) * cmath.exp(1j * angle)
            expected[i], expected[i + half] = turned.real, turned.imag
        assert out[token, head].tolist() == pytest.approx(expected, abs=1e-5)


def test_scores_depend_on_distance_only():
    rotary = RotaryEmbedding(parameters(), 64, CPU)
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def score(at: int, other: int) -> float:
        rotated = (apply_rotary(x, *rotary(torch.tensor([p]))) for x, p in ((query, at), (key, other)))
        return torch.sum(torch.mul(*rotated)).item()

    assert score(40, 30) == pytest.approx(score(17, 7), abs=1e-4)
    assert score(40, 30) != pytest.approx(score(40, 31), abs=1e-2)


def test_half_precision_is_rotated_in_float32():
    rotary = RotaryEmbedding(parameters(), 64, CPU)
    rotation = rotary(torch.arange(64))
    assert rotation[0].dtype == torch.float32
    x = torch.randn(64, 2, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = apply_rotary(x, *rotation)
    assert torch.equal(out, apply_rotary(x.float(), *rotation).bfloat16())


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 9.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 16.0, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
    {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    {"rope_type": "yarn", "factor": 40.0, "attention_factor": 1.25},
    {"rope_type": "yarn"},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize(("head_dim", "theta", "original"), [(16, 100.0, 64), (64, 10000.0, 512), (128, 5e5, 8192)])
def test_frequencies_equal_transformers(scaling, head_dim, theta, original):
    transformers = pytest.importorskip("transformers")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    longest = original if scaling["rope_type"] == "dynamic" else 4 * original
    rope = {**scaling, "rope_theta": theta, "original_max_position_embeddings": original}
    if scaling == {"rope_type": "yarn"}:
        rope["factor"] = None  # derived from the two lengths
    config = transformers.LlamaConfig(
        head_dim=head_dim, hidden_size=4 * head_dim, num_attention_heads=4, max_position_embeddings=longest
    )
    config.rope_parameters = dict(rope)
    expected, expected_factor = rope_utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    p = RotaryParameters.from_config({"max_position_embeddings": longest, "rope_parameters": rope}, head_dim)
    frequencies, factor = inverse_frequencies(p, longest)
    assert torch.allclose(frequencies, expected, rtol=1e-5, atol=0)
    assert factor == pytest.approx(expected_factor)


class TestDynamicScaling:
    """A pure function of config, longest sequence and position."""

    p = parameters(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0})

    def test_nothing_is_scaled_within_the_trained_length(self):
        plain = inverse_frequencies(parameters(rope_theta=100.0), 64)[0]
        for length in (1, 63, 64):
            assert torch.equal(inverse_frequencies(self.p, length)[0], plain)

    def test_beyond_it_every_position_has_the_base_of_the_whole_length(self):
        transformers = pytest.importorskip("transformers")
        rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
        config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64)
        config.rope_parameters = dict(self.p.options)
        expected = rope_utils.ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=128)[0]
        assert torch.allclose(inverse_frequencies(self.p, 128)[0], expected)
        assert not torch.allclose(inverse_frequencies(self.p, 128)[0], inverse_frequencies(self.p, 64)[0])

    def test_a_position_is_rotated_the_same_in_every_batch_and_chunk(self):
        rotary = RotaryEmbedding(self.p, 128, CPU)
        whole = rotary(torch.arange(128))[0]
        for chunk in (1, 7, 64):
            parts = [rotary(part)[0] for part in torch.arange(128).split(chunk)]
            assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(rotary(torch.tensor([120, 3, 77]))[0], whole[[120, 3, 77]])


def test_both_spellings_are_read():
    old = parameters(rope_theta=7.0, rope_scaling={"type": "linear", "factor": 2.0}, partial_rotary_factor=0.5)
    new = parameters(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0, "partial_rotary_factor": 0.5}
    )
    for name in ("rope_type", "theta", "factor", "rotary_dim", "original_max_position_embeddings"):
        assert getattr(old, name) == getattr(new, name)
    assert (new.theta, new.factor, new.rotary_dim) == (7.0, 2.0, 8)


def test_a_config_by_layer_type_is_read():
    config = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    }
    full = RotaryParameters.from_config(config, 16, layer_type="full_attention")
    sliding = RotaryParameters.from_config(config, 16, layer_type="sliding_attention")
    assert (full.rope_type, full.theta, full.factor) == ("linear", 1e6, 8.0)
    assert (sliding.rope_type, sliding.theta) == ("default", 1e4)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [({"type": "su"}, "'su' is not supported.*yarn"), ({"rope_type": "dynamic"}, "'dynamic' lacks factor")],
)
def test_unusable_scalings_are_refused(scaling, message):
    with pytest.raises(ModelLoadError, match=message):
        parameters(rope_scaling=scaling)
