"""Laws of models: the reference's logits, and the same ones in chunks, in batches, over a cache.

Owns: `ModelSuite`. Must never know: any architecture.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from octavo.errors import ModelLoadError
from octavo.loading.loader import load_model
from octavo.nn import LocalCommunicator, attention_layers
from octavo.sampling_params import SamplingParams
from octavo.spec import ForwardBatch, Model, ModelContext
from octavo.testing.dense_attention import DenseAttention
from octavo.testing.naive import dense_next_logits
from octavo.testing.suites.circumstances import CIRCUMSTANCES, MAX_MODEL_LEN
from octavo.testing.suites.folder_models import FolderPlugin, FolderSource
from octavo.testing.suites.subject import PluginSuite, no_errors_logged
from octavo.testing.workload import Job, Reference, run_jobs

ReferenceLogits = Callable[[Sequence[int]], torch.Tensor]
"""Logits [num_tokens, vocab_size] of token ids."""


class ModelSuite(PluginSuite):
    """See `octavo.testing.suites`."""

    registry: ClassVar[str] = "models"

    cases: Sequence[str] = ("",)
    tolerance: float = 1e-4

    def write(self, folder: Path, case: str) -> ReferenceLogits | None:
        """Write config.json and *.safetensors of a tiny model into `folder`; a reference for it, if there is one."""
        raise NotImplementedError("write a tiny model of the family")

    def llm(self, **keywords: Any) -> Any:
        from octavo import LLM

        plugins = [FolderPlugin(), *self._modules(), *keywords.pop("plugins", ())]
        settings: dict[str, Any] = {
            "autoload_plugins": False,
            "dtype": "float32",
            "device": "cpu",
            "num_blocks": 256,
            "num_threads": 1,
        }
        return LLM(plugins=plugins, **(settings | keywords))

    def load(self, folder: Path, changes: Mapping[str, torch.Tensor | None] | None = None) -> Model:
        """The model of the folder, with attention that needs no cache."""
        context = ModelContext(
            dtype=torch.float32,
            device=torch.device("cpu"),
            block_size=16,
            max_model_len=MAX_MODEL_LEN,
            communicator=LocalCommunicator(),
        )
        model = load_model(FolderSource(folder, changes), self.extensions, context)
        for layer in attention_layers(model).values():
            layer.bind(DenseAttention(), torch.empty(0), group_id=0)
        return model

    @staticmethod
    def logits(model: Model, token_ids: Sequence[int]) -> torch.Tensor:  # [num_tokens, vocab_size]
        with torch.inference_mode():
            ids = torch.tensor(token_ids)
            return model.logits(model.forward(ForwardBatch(ids, torch.arange(len(ids)), [None])))

    def prompt(self, model: Model, length: int = 40) -> list[int]:
        return torch.randint(0, model.vocab_size, (length,), generator=torch.Generator().manual_seed(1)).tolist()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases)

    @pytest.fixture
    def folder(self, tmp_path: Path, case: str) -> Path:
        self.reference = self.write(tmp_path, case)
        return tmp_path

    # Laws

    def test_the_logits_are_the_references(self, folder: Path) -> None:
        if self.reference is None:
            pytest.skip("it has no reference")
        model = self.load(folder)
        token_ids = self.prompt(model)
        with torch.inference_mode():
            expected = self.reference(token_ids)
        assert expected.std() > 0.01, "logits that are all alike would hide a difference"
        torch.testing.assert_close(self.logits(model, token_ids), expected, atol=self.tolerance, rtol=0.0)

    def test_shapes_names_and_caches_are_as_promised(self, folder: Path) -> None:
        model = self.load(folder)
        token_ids = self.prompt(model, 5)
        logits = self.logits(model, token_ids)
        assert logits.shape == (5, model.vocab_size)
        assert model.vocab_size == FolderSource(folder).config["vocab_size"]
        assert logits.isfinite().all()
        with torch.inference_mode():
            hidden = model.forward(ForwardBatch(torch.tensor(token_ids), torch.arange(5), [None]))
            assert hidden.shape[0] == 5
            torch.testing.assert_close(model.logits(hidden[3:]), logits[3:], atol=self.tolerance, rtol=0.0)
        specs, layers = model.kv_cache_specs(), attention_layers(model)
        assert list(specs) == list(layers), "attention layers and KV cache specs go by other names or orders"
        assert all(layers[name].spec == spec for name, spec in specs.items())
        assert not model.training, "it is not in eval mode"  # type: ignore[attr-defined]

    @pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
    def test_chunks_batches_and_caches_change_nothing(self, folder: Path, circumstance: str) -> None:
        """Tokens and log probabilities, of prompts too, against recomputing each from the whole text before it."""
        keywords = CIRCUMSTANCES[circumstance]
        engine = self.llm(model=str(folder), max_model_len=MAX_MODEL_LEN, **keywords).engine
        naive = dense_next_logits(FolderSource(folder), self.extensions, MAX_MODEL_LEN)
        reference = Reference(naive, engine)
        jobs = list(self._jobs(engine.inputs._vocab_size))
        with no_errors_logged():
            for _ in range(2):  # the second time from a warm cache
                for job, output in zip(jobs, run_jobs(engine, jobs), strict=True):
                    reference.check(job, output, self.tolerance)

    @staticmethod
    def _jobs(vocab_size: int) -> Iterator[Job]:
        rng = random.Random(0)
        stem = [rng.randrange(vocab_size) for _ in range(40)]
        common: dict[str, Any] = {"detokenize": False, "ignore_eos": True, "logprobs": 2, "max_tokens": 8}
        for i, length in enumerate((1, 5, 17, 33, 40)):
            prompt = (*stem[:length], rng.randrange(vocab_size))
            own: dict[str, Any] = (
                {"temperature": 0.7, "seed": i} if i % 2 else {"temperature": 0.0, "prompt_logprobs": 0}
            )
            yield Job(prompt=prompt, params=SamplingParams(**(common | own)), arrives=i % 3)

    def test_it_loads_the_same_twice(self, folder: Path) -> None:
        one, other = self.load(folder), self.load(folder)
        token_ids = self.prompt(one)
        assert torch.equal(self.logits(one, token_ids), self.logits(other, token_ids))

    def test_every_weight_counts(self, folder: Path) -> None:
        """A tensor of the checkpoint that is changed changes logits, unless the model ignores it by name."""
        model, source = self.load(folder), FolderSource(folder)
        token_ids = self.prompt(model, 12)
        expected = self.logits(model, token_ids)
        generator = torch.Generator().manual_seed(0)
        for name, tensor in source.tensors(torch.float32):
            noise = torch.randn(tensor.shape, generator=generator)
            changed = self.logits(self.load(folder, {name: tensor + noise}), token_ids)
            assert not torch.equal(changed, expected), f"{name} has no influence on the logits"

    def test_weights_that_do_not_fit_are_named(self, folder: Path) -> None:
        surplus = "model.layers.0.of_another_model.weight"
        with pytest.raises(ModelLoadError, match=r"of_another_model"):
            self.load(folder, {surplus: torch.zeros(3)})
        for name, tensor in FolderSource(folder).tensors(torch.float32):
            for change in (None, tensor.new_zeros([size + 1 for size in tensor.shape])):
                with pytest.raises(ModelLoadError, match=re.escape(name)):
                    self.load(folder, {name: change})

    def test_fused_weights_load_from_parts_and_as_one(self, folder: Path) -> None:
        model, source = self.load(folder), FolderSource(folder)
        if not model.packed_modules:
            pytest.skip("it fuses no weights")
        tensors = dict(source.tensors(torch.float32))
        changes: dict[str, torch.Tensor | None] = {}
        for name in tensors:
            for fused, parts in model.packed_modules.items():
                if f".{parts[0]}." in name:
                    names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
                    changes |= dict.fromkeys(names)
                    whole = torch.cat([tensors[n] for n in names])
                    changes[name.replace(f".{parts[0]}.", f".{fused}.")] = whole
        assert changes, "no tensor of the checkpoint is a part of packed_modules"
        token_ids = self.prompt(model)
        fused_logits = self.logits(self.load(folder, changes), token_ids)
        assert torch.equal(fused_logits, self.logits(model, token_ids))
