"""Configuration and tensors, against the checkpoints that the files were written from."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch

from octavo.errors import ModelLoadError
from octavo.spec import load_factory
from octavo_gguf import plugin
from octavo_gguf.architectures import ARCHITECTURES, in_hugging_face_order, model_config, tensor_names
from octavo_gguf.reader import GGUFFile
from octavo_gguf.rope import llama3_divisors
from octavo_gguf.source import GGUFSource

FAMILIES = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "smollm3": {"tied": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arch", FAMILIES)
def test_tensors_are_those_of_the_checkpoint(tiny, tmp_path, arch, dtype):
    model = tiny(arch, **FAMILIES[arch])
    source = GGUFSource(model.write(tmp_path / "m.bin"))
    for _ in ("cold", "warm"):
        tensors = dict(source.tensors(dtype))
        assert set(source.tensor_names()) == set(tensors) == set(model.weights)
        for name, tensor in tensors.items():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, torch.from_numpy(model.weights[name]).to(dtype)), name


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_quantised_tensors_are_decoded(tiny, tmp_path, kind):
    model = tiny("llama")
    quantisation = gguf.GGMLQuantizationType[kind]
    model.kinds = {"blk.0.ffn_up.weight": quantisation, "blk.1.attn_k.weight": quantisation}
    tensors = dict(GGUFSource(model.write(tmp_path / "m.gguf")).tensors(torch.float32))
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.k_proj.weight"):
        exact = model.weights[name]
        decoded = gguf.dequantize(gguf.quantize(exact, quantisation), quantisation).reshape(exact.shape)
        np.testing.assert_allclose(tensors[name].numpy(), decoded, atol=0)
        assert np.abs(tensors[name].numpy() - exact).max() < 0.35


@pytest.mark.parametrize(
    ("arch", "class_name", "own"),
    [
        ("llama", "LlamaForCausalLM", {"model_type": "llama", "attention_bias": False, "mlp_bias": False}),
        ("qwen2", "Qwen2ForCausalLM", {"model_type": "qwen2"}),
        ("qwen3", "Qwen3ForCausalLM", {"model_type": "qwen3", "attention_bias": False}),
        ("smollm3", "SmolLM3ForCausalLM", {"model_type": "smollm3", "no_rope_layers": [1, 1]}),
    ],
)
def test_config(tiny, tmp_path, arch, class_name, own):
    source = GGUFSource(tiny(arch, **FAMILIES[arch]).write(tmp_path / "m.gguf"))
    expected = {
        "architectures": [class_name],
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "vocab_size": 300,
        "tie_word_embeddings": arch == "smollm3",
        "bos_token_id": 256,
        "eos_token_id": 257,
        **own,
    }
    assert {key: source.config[key] for key in expected} == expected
    assert source.config["rms_norm_eps"] == pytest.approx(1e-5)
    assert source.generation_config == {"eos_token_id": [257]}
    assert GGUFSource(source.path).config == source.config  # warm


def test_head_dim_and_defaults(tiny, tmp_path):
    model = tiny("llama")
    model.fields |= {"attention.key_length": 16, "feed_forward_length": [64, 64], "attention.sliding_window": 40}
    for key in ("attention.head_count_kv", "rope.freq_base"):
        del model.fields[key]
    model.tokenizer["eot_token_id"] = 258
    source = GGUFSource(model.write(tmp_path / "m.gguf"))
    assert source.config["head_dim"] == 16
    assert source.config["num_key_value_heads"] == 4
    assert source.config["rope_theta"] == 10_000
    assert source.config["intermediate_size"] == 64
    assert source.config["architectures"] == ["MistralForCausalLM"]
    assert source.config["sliding_window"] == 40
    assert source.generation_config == {"eos_token_id": [257, 258]}


EXPECTED = [
    ("model.layers.3.self_attn.q_proj.weight", [0.07791138, 0.1528015, 0.3066406], -6120.037),
    ("model.layers.29.self_attn.k_proj.weight", [0.06240845, 0.004333496, 0.0819397], 11887.495),
    ("model.layers.29.mlp.down_proj.weight", [-0.2733154, 0.1862793, 0.05664062], 1896.5325),
    ("model.layers.3.input_layernorm.weight", [0.1376953, 0.3125, 0.3886719], 47958.764),
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_beta_fast": 16.0,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0},
        ),
    ],
)
def test_rope_scaling(tiny, tmp_path, fields, scaling):
    model = tiny("qwen2", qkv_bias=True)
    model.fields |= fields
    assert GGUFSource(model.write(tmp_path / "m.gguf")).config["rope_scaling"] == scaling


@pytest.mark.parametrize("original", [8192, 4096])
def test_llama3_scaling_is_recognised_from_its_divisors(tiny, tmp_path, original):
    model = tiny("llama")
    model.fields |= {"attention.key_length": 64, "rope.freq_base": 500_000.0}
    scaling = LLAMA3 | {"original_max_position_embeddings": original}
    model.tensors["rope_freqs.weight"] = llama3_divisors(64, 500_000.0, scaling).astype(np.float32)
    source = GGUFSource(model.write(tmp_path / "m.gguf"))
    assert source.config["rope_scaling"] == scaling
    assert not any("rope" in name for name in source.tensor_names())


def test_llama3_divisors_are_those_of_the_published_function():
    for i, divisor in enumerate(llama3_divisors(64, 500_000.0, LLAMA3 | {"original_max_position_embeddings": 8192})):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * i / 64)
        if wavelength < 8192 / 4:
            expected = 1.0
        elif wavelength > 8192:
            expected = 8.0
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = 1 / ((1 - smooth) / 8 + smooth)
        assert divisor == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "arch", "mamba"), r"the architecture 'mamba', only llama, qwen2, qwen3, smollm3"),
        (lambda m: m.fields.update({"expert_count": 8}), "mixtures of experts"),
        (lambda m: m.fields.pop("block_count"), r"no llama\.block_count"),
        (lambda m: m.fields.update({"feed_forward_length": [64, 32]}), "in every layer"),
        (lambda m: m.tensors.update({"blk.0.odd.weight": np.ones(32, np.float32)}), r"the tensor blk\.0\.odd\.weight"),
        (lambda m: m.tensors.update({"rope_freqs.weight": np.full(4, 3, np.float32)}), "Llama 3's scaling"),
        (lambda m: m.fields.update({"rope.scaling.type": "longrope"}), "rope scaling 'longrope'"),
        (lambda m: m.tokenizer.update({"pre": "nobody"}), "pre-tokenizer 'nobody', only default, gpt-2"),
        (lambda m: m.tokenizer.update({"model": "t5"}), "tokenizer 't5', only gpt2, llama"),
        (lambda m: m.tokenizer.update({"merges": ["a b"]}), "1 merges name tokens"),
        (lambda m: m.tokenizer.update({"eos_token_id": 9999}), "eos_token_id is 9999"),
    ],
)
def test_what_is_not_mapped_is_one_clear_line(tiny, tmp_path, change, message):
    model = tiny("llama")
    change(model)
    with pytest.raises(ModelLoadError, match=message) as caught:
        GGUFSource(model.write(tmp_path / "m.gguf"))
    assert "\n" not in str(caught.value)


def test_the_plugin_goes_by_content_and_imports_nothing_heavy(tiny, tmp_path):
    (entry,) = plugin.octavo_register_weight_formats()
    path = tiny("llama").write(tmp_path / "model.of.any.name")
    assert load_factory(entry.factory)(path).path == path
    assert entry.can_read(path)
    (tmp_path / "other.gguf").write_bytes(b"GGU")
    for other in (tmp_path / "other.gguf", tmp_path, tmp_path / "nowhere", "\0"):
        assert not entry.can_read(str(other))
    code = "import sys, octavo_gguf.plugin; sys.exit(bool({'torch', 'gguf', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_some_tensors_of_the_packaged_model(packaged_path):
    """Values that equal those of transformers (the test below); converting everything takes too long here."""
    file = GGUFFile(packaged_path)
    config, names = model_config(file), tensor_names(file)
    assert len(names) == 272
    assert (config["architectures"], config["tie_word_embeddings"]) == (["LlamaForCausalLM"], True)
    for name, first, total in EXPECTED:
        values = in_hugging_face_order(file, names[name], file.tensor(names[name]), ARCHITECTURES["llama"], config)
        np.testing.assert_allclose(values.reshape(-1)[[0, 1, -1]], first, rtol=1e-5)
        # Weighted by row, so that rows in another order give another sum.
        rows = np.arange(1, len(values) + 1, dtype=np.float64)
        assert rows @ values.reshape(len(values), -1).sum(1, dtype=np.float64) == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("OCTAVO_SLOW_TESTS"), reason="takes a minute; set OCTAVO_SLOW_TESTS=1")
def test_the_packaged_model_against_transformers(packaged_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    monkeypatch.setattr(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))
    source = GGUFSource(packaged_path)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**source.config))
    theirs = load_gguf_checkpoint(packaged_path, return_tensors=True, model_to_load=model)
    for key, value in theirs["config"].items():
        if key in source.config:
            assert source.config[key] == value, key
    ours = dict(source.tensors(torch.float32))
    assert set(ours) == set(theirs["tensors"])
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs["tensors"].items())
