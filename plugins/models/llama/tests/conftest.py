"""A driver for models without an engine: dense attention over one whole sequence."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from octavo.config import EngineConfig
from octavo.loading.loader import load_model
from octavo.nn import LocalCommunicator, attention_layers
from octavo.plugins import load_extensions
from octavo.spec import ForwardBatch, ModelContext
from octavo.testing.dense_attention import DenseAttention
from octavo_llama import plugin

EXTENSIONS = load_extensions(EngineConfig(autoload_plugins=False), [plugin])


class ThreadWorld:
    """Ranks that are threads of one process, meeting at a barrier."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=120)
        self.parts: list[torch.Tensor | None] = [None] * world_size

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.parts[rank] = tensor
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class ThreadCommunicator:
    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world, self.rank, self.world_size = world, rank, len(world.parts)

    def all_reduce(self, tensor):
        return sum(self.world.exchange(self.rank, tensor))

    def all_gather(self, tensor):
        return torch.cat(self.world.exchange(self.rank, tensor), dim=-1)


class FolderSource:
    """A `ModelSource` over a folder with one safetensors file, unchecked."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.config = json.loads((folder / "config.json").read_text())
        self.generation_config: dict = {}
        self._tensors = load_file(folder / "model.safetensors")

    def tensor_names(self):
        return list(self._tensors)

    def tensors(self, dtype):
        for name, tensor in self._tensors.items():
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor

    def tokenizer(self):
        raise NotImplementedError


def context(**changes) -> ModelContext:
    given = {
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "block_size": 16,
        "max_model_len": 128,
        "communicator": LocalCommunicator(),
    }
    return ModelContext(**{**given, **changes})


def load(folder, **changes):
    model = load_model(FolderSource(Path(folder)), EXTENSIONS, context(**changes))
    for layer in attention_layers(model).values():
        layer.bind(DenseAttention(), torch.empty(0), 0)
    return model


def batch_of(ids: torch.Tensor, **changes) -> ForwardBatch:
    return ForwardBatch(input_ids=ids, positions=torch.arange(len(ids)), attention=[None], **changes)


def logits_of(model, ids: torch.Tensor) -> torch.Tensor:
    return model.logits(model.forward(batch_of(ids)))


@pytest.fixture
def driver():
    return SimpleNamespace(
        load=load,
        logits=logits_of,
        batch=batch_of,
        context=context,
        extensions=EXTENSIONS,
        world=ThreadWorld,
        communicator=ThreadCommunicator,
    )


SIZES = {
    "vocab_size": 250,  # does not divide by 4, so that a sharded vocabulary is filled up
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def tiny(tmp_path: Path):
    """`tiny(family, **config) -> (folder, reference model)`: seeded random weights, biases and norms too."""
    transformers = pytest.importorskip("transformers")

    def make(family: str, **changes):
        config_type = getattr(transformers, f"{family}Config")
        model_type = getattr(transformers, f"{family}ForCausalLM")
        torch.manual_seed(0)
        config = config_type(**{**SIZES, **changes}, attn_implementation="eager")
        model = model_type(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(tmp_path)
        return tmp_path, model

    return make


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield
