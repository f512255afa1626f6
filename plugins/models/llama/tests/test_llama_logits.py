"""Logits of every family against transformers, in float32, from files that transformers wrote."""

from __future__ import annotations

import json
import threading

import pytest
import torch

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES = {
    "llama": ("Llama", {}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": (
        "Llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False, "beta_fast": 8}},
    ),
    "llama-yarn-factor": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-head-dim": ("Llama", {"head_dim": 32}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama-multi-head": ("Llama", {"num_key_value_heads": 4}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-biases-tied-window": (
        "Qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "smollm3-window": (
        "SmolLM3",
        {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 6, "tie_word_embeddings": False},
    ),
}


def prompt(length: int = 40) -> torch.Tensor:
    return torch.randint(0, 250, (length,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", FAMILIES)
def test_logits_equal_the_reference(case, tiny, driver):
    family, changes = FAMILIES[case]
    folder, reference = tiny(family, **changes)
    ids = prompt()
    expected = reference(ids[None]).logits[0]
    assert expected.std() > 0.1  # logits that are all alike would hide a difference
    difference = (driver.logits(driver.load(folder), ids) - expected).abs().max()
    assert difference < 1e-4


@pytest.mark.parametrize("case", ["llama", "mistral-window", "smollm3"])
def test_the_reference_tells_variants_apart(case, tiny, driver):
    """The comparison above can fail: a window, NoPE layers or another rope base change these logits visibly."""
    family, changes = FAMILIES[case]
    folder, reference = tiny(family, **changes)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(sliding_window=None, no_rope_layers=[1] * config["num_hidden_layers"], no_rope_layer_interval=0)
    if family == "Llama":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0}
    file.write_text(json.dumps(config))
    ids = prompt()
    assert (driver.logits(driver.load(folder), ids) - reference(ids[None]).logits[0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "scaling", [None, {"type": "linear", "factor": 2.0}, {k: v for k, v in LLAMA3.items() if k != "rope_theta"}]
)
def test_the_spelling_of_transformers_4_means_the_same(scaling, tiny, driver):
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": 300.0}
    parameters["rope_type"] = parameters.pop("type", parameters["rope_type"])
    folder, _ = tiny("Llama", rope_parameters=parameters)
    ids = prompt()
    expected = driver.logits(driver.load(folder), ids)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    file.write_text(json.dumps({**config, "rope_theta": 300.0, "rope_scaling": scaling}))
    assert torch.equal(driver.logits(driver.load(folder), ids), expected)


def test_bfloat16_stays_close(tiny, driver):
    folder, reference = tiny("Qwen3", head_dim=32, initializer_range=0.05)
    ids = prompt()
    logits = driver.logits(driver.load(folder, dtype=torch.bfloat16), ids)
    assert logits.dtype == torch.bfloat16
    expected = reference(ids[None]).logits[0]
    assert (logits.float() - expected).abs().max() < 0.1 * expected.abs().max()


def in_parallel(driver, folder, ids: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    world = driver.world(world_size)
    results: list = [None] * world_size

    def run(rank: int) -> None:
        try:
            with torch.no_grad():
                model = driver.load(folder, communicator=driver.communicator(world, rank))
                results[rank] = driver.logits(model, ids)
        except BaseException as error:
            results[rank] = error
            world.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("case", ["llama", "llama-biases", "qwen2", "qwen3-biases-tied-window"])
def test_ranks_with_shards_give_the_same_logits(case, world_size, tiny, driver):
    family, changes = FAMILIES[case]
    folder, reference = tiny(family, **changes)
    ids = prompt(20)
    expected = reference(ids[None]).logits[0]
    for logits in in_parallel(driver, folder, ids, world_size):
        assert isinstance(logits, torch.Tensor), logits
        assert logits.shape == expected.shape
        assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["llama", "llama-tied"])
def test_pipeline_stages_give_the_same_logits(case, tiny, driver):
    family, changes = FAMILIES[case]
    folder, _ = tiny(family, num_hidden_layers=3, **changes)
    ids = prompt(20)
    whole = driver.load(folder)
    expected = driver.logits(whole, ids)
    specs = {}
    intermediate = {}
    for layer_range in ((0, 1), (1, 2), (2, 3)):
        stage = driver.load(folder, layer_range=layer_range)
        specs.update(stage.kv_cache_specs())
        hidden = stage.forward(driver.batch(ids, intermediate=intermediate))
        intermediate = {"hidden": hidden}
    assert (stage.logits(hidden) - expected).abs().max() < 1e-5
    assert specs == whole.kv_cache_specs()


def test_layers_state_what_they_need(tiny, driver):
    folder, _ = tiny("Qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1)
    model = driver.load(folder)
    params = [model.model.layers[i].self_attn.attn.params for i in "01"]
    assert [p.sliding_window for p in params] == [None, 5]
    specs = model.kv_cache_specs()
    assert list(specs) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert {(s.block_size, s.num_kv_heads, s.head_dim, s.dtype) for s in specs.values()} == {(16, 2, 16, "float32")}


def test_parameters_are_frozen_and_in_eval_mode(tiny, driver):
    folder, _ = tiny("Llama")
    model = driver.load(folder)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
