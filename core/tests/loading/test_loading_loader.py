"""Every parameter exactly once, every tensor used or ignored, and who is named when it fails."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.errors import ConfigError, ModelLoadError, PluginError
from octavo.extensions import Broken, Origin
from octavo.loading.loader import find_architecture, load_model
from octavo.spec import ModelEntry, ModelTransform


def test_parameters_equal_the_checkpoint(toy, context):
    tensors = toy.tensors()
    model = load_model(toy.Source(tensors), toy.extensions(), context)
    assert torch.equal(model.fused.weight, torch.cat([tensors["left.weight"], tensors["right.weight"]]))
    for name in ("plain.weight", "plain.bias", "norm.weight", "scale"):
        assert torch.equal(model.state_dict()[name], tensors[name])
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_the_order_of_tensors_does_not_matter(toy, context):
    expected = load_model(toy.Source(toy.tensors()), toy.extensions(), context).state_dict()
    for seed in range(5):
        shuffled = list(toy.tensors().items())
        random.Random(seed).shuffle(shuffled)
        state = load_model(toy.Source(shuffled), toy.extensions(), context).state_dict()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["left.weight", "right.weight", "plain.weight", "plain.bias", "norm.weight", "scale"])
def test_each_missing_tensor_is_named(name, toy, context):
    tensors = toy.tensors()
    del tensors[name]
    with pytest.raises(ModelLoadError, match=f"do not fit ToyModel: missing from the weights: {name}$"):
        load_model(toy.Source(tensors), toy.extensions(), context)


@pytest.mark.parametrize("name", ["more", "plain.more", "more.weight", "left.bias", "computed", "leftover.weight"])
def test_each_surplus_tensor_is_named(name, toy, context):
    source = toy.Source({**toy.tensors(), name: torch.zeros(3)})
    with pytest.raises(ModelLoadError, match=f"in the weights but unknown to the model: {name}$"):
        load_model(source, toy.extensions(), context)


@pytest.mark.parametrize("name", ["extra.weight", "extra.a.b", "layers.3.rotary_emb.inv_freq", "rotary_emb.inv_freq"])
def test_ignored_tensors_are_not_surplus(name, toy, context):
    load_model(toy.Source({**toy.tensors(), name: torch.zeros(3)}), toy.extensions(), context)


def test_ignoring_needs_a_full_match(toy, context):
    source = toy.Source({**toy.tensors(), "more.extra.weight": torch.zeros(3)})
    with pytest.raises(ModelLoadError, match=r"more\.extra\.weight"):
        load_model(source, toy.extensions(), context)


def test_at_most_five_are_named(toy, context):
    surplus = {f"more.{i}": torch.zeros(1) for i in range(8)}
    with pytest.raises(ModelLoadError, match=r"more\.0, more\.1, more\.2, more\.3, more\.4 and 3 more"):
        load_model(toy.Source({**toy.tensors(), **surplus}), toy.extensions(), context)


@pytest.mark.parametrize("name", ["left.weight", "plain.bias"])
def test_a_tensor_that_comes_twice_is_an_error(name, toy, context):
    twice = [*toy.tensors().items(), (name, toy.tensors()[name])]
    with pytest.raises(ModelLoadError, match=f"in the weights twice: {name}"):
        load_model(toy.Source(twice), toy.extensions(), context)


def test_a_source_that_gives_less_than_it_promised_is_an_error(toy, context):
    tensors = toy.tensors()
    promised = list(tensors)
    del tensors["right.weight"]
    with pytest.raises(ModelLoadError, match=r"the weights end without right\.weight"):
        load_model(toy.Source(tensors, promised=promised), toy.extensions(), context)


def test_wrong_shapes_are_all_named(toy, context):
    tensors = toy.tensors()
    tensors["left.weight"] = torch.zeros(4, 5)
    tensors["norm.weight"] = torch.zeros(1)  # would broadcast
    with pytest.raises(ModelLoadError) as caught:
        load_model(toy.Source(tensors), toy.extensions(), context)
    assert "left.weight has shape [4, 5], but the config implies [4, 4]" in str(caught.value)
    assert "norm.weight has shape [1], but the config implies [4]" in str(caught.value)


def test_an_unknown_architecture_lists_who_was_looked_at(toy, context):
    source = toy.Source({}, config={"architectures": ["ToyForCausalLN"]})
    broken = (Broken(Origin("mamba", "octavo-mamba", "0.1"), "ImportError: no kernels"),)
    with pytest.raises(ModelLoadError) as caught:
        load_model(source, toy.extensions(broken=broken), context)
    for part in (
        "'ToyForCausalLN'",
        "did you mean 'ToyForCausalLM'",
        "toy (octavo-toy 3.1)",
        "ImportError: no kernels",
    ):
        assert part in str(caught.value)


def test_the_first_known_architecture_is_taken(toy):
    extensions = toy.extensions()
    config = {"architectures": ["Unknown", "ToyForCausalLM"]}
    assert find_architecture(config, extensions).entry.name == "ToyForCausalLM"
    assert find_architecture({}, extensions, "ToyForCausalLM").entry.name == "ToyForCausalLM"
    with pytest.raises(ModelLoadError, match="'Unknown'"):
        find_architecture(config, extensions, "Unknown")
    with pytest.raises(ModelLoadError, match="names no architecture"):
        find_architecture({"architectures": []}, extensions)
    with pytest.raises(ModelLoadError, match="names no architecture"):
        find_architecture({"architectures": 5}, extensions)


def test_a_model_that_cannot_be_built_names_its_plugin(toy, context):
    with pytest.raises(ModelLoadError, match=r"toy \(octavo-toy 3\.1\).*KeyError\('hidden_size'\)"):
        load_model(toy.Source({}, config={"architectures": ["ToyForCausalLM"]}), toy.extensions(), context)


def test_a_model_that_refuses_in_its_own_words_is_heard(toy, context):
    def refuse(config, context):
        raise ConfigError("not with 3 ranks")

    extensions = toy.extensions(models=[ModelEntry(name="ToyForCausalLM", factory=refuse)])
    with pytest.raises(ConfigError, match=r"^not with 3 ranks$"):
        load_model(toy.Source({}), extensions, context)


class TestTransforms:
    def test_run_in_rising_priority_on_a_filled_model(self, toy, context):
        seen = []

        def step(name):
            def apply(model, options):
                seen.append((name, model.norm.weight.tolist()))
                return model

            return apply

        entries = [
            ModelTransform(name=name, apply=step(name), priority=priority)
            for name, priority in (("late", 5), ("b", 0), ("early", -5), ("a", 0))
        ]
        load_model(toy.Source(toy.tensors()), toy.extensions(model_transforms=entries), context)
        assert [name for name, _ in seen] == ["early", "a", "b", "late"]
        assert all(weight == toy.tensors()["norm.weight"].tolist() for _, weight in seen)

    def test_the_result_is_what_they_return_frozen(self, toy, context):
        class Wrapped(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner, self.new = inner, torch.nn.Parameter(torch.zeros(1))

        entry = ModelTransform(name="wrap", apply=lambda model, options: Wrapped(model))
        model = load_model(toy.Source(toy.tensors()), toy.extensions(model_transforms=[entry]), context)
        assert isinstance(model, Wrapped)
        assert not model.training
        assert not model.new.requires_grad

    @pytest.mark.parametrize("result", ["raise", None, 5])
    def test_a_failure_names_the_plugin(self, result, toy, context):
        def apply(model, options):
            if result == "raise":
                raise RuntimeError("no room")
            return result

        extensions = toy.extensions(model_transforms=[ModelTransform(name="prepack", apply=apply)])
        with pytest.raises(PluginError, match=r"toy \(octavo-toy 3\.1\): model transform 'prepack'"):
            load_model(toy.Source(toy.tensors()), extensions, context)


def test_weights_are_never_held_twice(toy, context):
    """While tensor N is copied, nothing holds on to the ones before it."""
    import gc
    import weakref

    alive: list[weakref.ref] = []

    class Source(toy.Source):
        def tensors(self, dtype):
            for name, _ in self.given:
                gc.collect()
                assert sum(ref() is not None for ref in alive) <= 1
                tensor = toy.tensors()[name].clone()
                alive.append(weakref.ref(tensor))
                yield name, tensor

    load_model(Source(toy.tensors()), toy.extensions(), context)
    assert len(alive) == 6


def test_a_parameter_that_is_shared_is_filled_once(toy, context):
    class Shared(toy.Model):
        def __init__(self, config, context):
            super().__init__(config, context)
            self.twin = torch.nn.Module()
            self.twin.weight = self.plain.weight

    extensions = toy.extensions(models=[ModelEntry(name="ToyForCausalLM", factory=Shared)])
    model = load_model(toy.Source(toy.tensors()), extensions, context)
    assert torch.equal(model.twin.weight, toy.tensors()["plain.weight"])
