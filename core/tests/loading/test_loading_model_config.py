from __future__ import annotations

from types import SimpleNamespace

import pytest

from octavo.errors import ModelLoadError
from octavo.loading.model_config import derive_max_model_len, eos_token_ids, extended_max_model_len


@pytest.mark.parametrize(
    ("config", "default", "longest"),
    [
        ({"max_position_embeddings": 100}, 100, 100),
        ({"n_positions": 100}, 100, 100),
        ({}, 2048, 2048),
        ({"max_position_embeddings": 100, "rope_scaling": None}, 100, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 2.5}}, 250, 250),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 400, 400),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "default", "rope_theta": 5}}, 100, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "yarn", "factor": 4}}, 400, 400),
        (
            {
                "max_position_embeddings": 400,
                "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100},
            },
            400,
            400,
        ),
        (
            {
                "max_position_embeddings": 800,
                "rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 100},
            },
            800,
            800,
        ),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "dynamic", "factor": 2}}, 100, 200),
    ],
)
def test_lengths(config, default, longest):
    assert derive_max_model_len(config) == default
    assert extended_max_model_len(config) == longest


@pytest.mark.parametrize("length", [0, -1, "long", 1.5, 10**400])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ModelLoadError, match="max_position_embeddings"):
        derive_max_model_len({"max_position_embeddings": length})


@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic"])
@pytest.mark.parametrize("factor", ["two", -1, float("inf"), float("nan"), 10**400, [2]])
def test_a_factor_that_makes_no_sense_is_refused(kind, factor):
    config = {"max_position_embeddings": 100, "rope_scaling": {"type": kind, "factor": factor}}
    with pytest.raises(ModelLoadError, match="rope scaling makes no sense: its factor is"):
        extended_max_model_len(config)


def test_a_scaling_that_is_no_mapping_is_refused():
    with pytest.raises(ModelLoadError, match="rope scaling makes no sense: 'yarn' is no mapping"):
        derive_max_model_len({"max_position_embeddings": 100, "rope_scaling": "yarn"})


@pytest.mark.parametrize("original", ["x", 1.5, -1, [1], 10**400])
def test_an_original_length_that_is_none_is_refused(original):
    scaling = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": original}
    with pytest.raises(ModelLoadError, match="original_max_position_embeddings is"):
        derive_max_model_len({"max_position_embeddings": 100, "rope_scaling": scaling})


@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic"])
def test_the_largest_lengths_and_factors_still_multiply(kind):
    scaling = {"type": kind, "factor": 2**62, "original_max_position_embeddings": 2**62}
    assert extended_max_model_len({"max_position_embeddings": 2**62, "rope_scaling": scaling}) == 2**124


def test_every_eos_id_counts():
    tokenizer = SimpleNamespace(eos_token_ids=(4,))
    assert eos_token_ids({"eos_token_id": 3}, {"eos_token_id": [1, 2]}, tokenizer) == {1, 2, 3, 4}
    assert eos_token_ids({"eos_token_id": [3, 5]}, {"eos_token_id": 0}, None) == {0, 3, 5}
    assert eos_token_ids({"eos_token_id": None}, {}, None) == frozenset()


@pytest.mark.parametrize("bad", ["</s>", [1, "x"], 1.5, True])
def test_eos_ids_that_are_no_ids_are_refused(bad):
    with pytest.raises(ModelLoadError, match="generation_config"):
        eos_token_ids({}, {"eos_token_id": bad}, None)
