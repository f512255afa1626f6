"""What the families refuse, and what they make of contradictory files."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.errors import ConfigError, ModelLoadError
from octavo.spec import load_factory
from octavo_llama.plugin import octavo_register_models


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_every_entry_names_a_factory():
    assert all(callable(load_factory(entry.factory)) for entry in octavo_register_models())


def test_the_entry_point_imports_no_torch():
    code = "import sys, octavo_llama.plugin as p; p.octavo_register_models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"rope_parameters": {"rope_type": "helix"}}, "rope scaling 'helix'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "lacks low_freq_factor, high_freq_factor"),
        ({"num_attention_heads": 3}, "3 heads with 2 KV heads"),
    ],
)
def test_a_config_that_cannot_be_built_says_why(changes, message, tiny, driver):
    folder, _ = tiny("Llama")
    change_config(folder, **changes)
    with pytest.raises((ModelLoadError, ConfigError), match=message):
        driver.load(folder)


def test_a_parallel_size_that_does_not_fit_is_refused(tiny, driver):
    folder, _ = tiny("Llama")
    with pytest.raises(ConfigError, match="4 heads with 2 KV heads cannot be dealt out to 3 ranks"):
        driver.load(folder, communicator=driver.communicator(driver.world(3), 0))


def test_missing_and_surplus_tensors_are_named_as_the_file_names_them(tiny, driver):
    folder, _ = tiny("Llama")

    def change(tensors):
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        tensors["model.layers.0.self_attn.k_proj.bias"] = torch.zeros(32)

    change_weights(folder, change)
    with pytest.raises(ModelLoadError) as caught:
        driver.load(folder)
    assert "missing from the weights: model.layers.1.self_attn.k_proj.weight" in str(caught.value)
    assert "unknown to the model: model.layers.0.self_attn.k_proj.bias" in str(caught.value)


def test_a_wrong_shape_inside_a_fused_layer_is_named(tiny, driver):
    folder, _ = tiny("Llama")
    change_weights(folder, lambda t: t.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(95, 64)}))
    with pytest.raises(ModelLoadError, match=r"up_proj.weight has shape \[95, 64\], but the config implies \[96, 64\]"):
        driver.load(folder)


def test_integer_weights_are_refused(tiny, driver):
    folder, _ = tiny("Llama")
    change_weights(
        folder, lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.zeros(64, 96, dtype=torch.int8)})
    )
    with pytest.raises(ModelLoadError, match=r"down_proj\.weight holds int8"):
        driver.load(folder)


def test_old_rotary_buffers_are_ignored(tiny, driver):
    folder, _ = tiny("Llama")
    change_weights(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    driver.load(folder)


def test_fused_checkpoints_load_too(tiny, driver):
    folder, _ = tiny("Llama")
    ids = torch.arange(20)
    expected = driver.logits(driver.load(folder), ids)

    def fuse(tensors):
        for i in range(2):
            layer = f"model.layers.{i}."
            parts = [tensors.pop(f"{layer}self_attn.{p}_proj.weight") for p in "qkv"]
            tensors[f"{layer}self_attn.qkv_proj.weight"] = torch.cat(parts)

    change_weights(folder, fuse)
    assert torch.equal(driver.logits(driver.load(folder), ids), expected)


def test_half_fused_checkpoints_are_refused(tiny, driver):
    folder, _ = tiny("Llama")

    def fuse(tensors):
        parts = [tensors[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv"]
        tensors["model.layers.0.self_attn.qkv_proj.weight"] = torch.cat(parts)

    change_weights(folder, fuse)
    with pytest.raises(ModelLoadError, match=r"unknown to the model: .*q_proj\.weight"):
        driver.load(folder)


class TestTiedEmbeddings:
    """The config says one thing, the file another."""

    def test_tied_and_another_head_in_the_file_follows_the_config_and_warns(self, tiny, driver, caplog):
        folder, reference = tiny("Llama", tie_word_embeddings=True)
        change_weights(folder, lambda t: t.update({"lm_head.weight": torch.randn(250, 64)}))
        ids = torch.arange(20)
        with caplog.at_level(logging.WARNING):
            model = driver.load(folder)
        assert (driver.logits(model, ids) - reference(ids[None]).logits[0]).abs().max() < 1e-4
        assert "tie_word_embeddings" in caplog.text

    def test_tied_and_the_same_head_in_the_file_is_silent(self, tiny, driver, caplog):
        folder, _ = tiny("Llama", tie_word_embeddings=True)
        change_weights(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
        with caplog.at_level(logging.WARNING):
            driver.load(folder)
        assert not caplog.records

    def test_tied_without_a_head_shares_the_parameter(self, tiny, driver):
        folder, _ = tiny("Llama", tie_word_embeddings=True)
        assert "lm_head.weight" not in load_file(folder / "model.safetensors")
        model = driver.load(folder)
        assert model.lm_head.weight is model.model.embed_tokens.weight

    def test_separate_without_a_head_is_an_error(self, tiny, driver):
        folder, _ = tiny("Llama")
        change_weights(folder, lambda t: t.pop("lm_head.weight"))
        with pytest.raises(ModelLoadError, match=r"missing from the weights: lm_head\.weight"):
            driver.load(folder)

    def test_separate_heads_stay_separate(self, tiny, driver):
        folder, _ = tiny("Llama")
        model = driver.load(folder)
        assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
