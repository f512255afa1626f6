"""A toy architecture and a toy weight format; no plugin is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn

from octavo.extensions import Extensions, Offer, Origin, Registry
from octavo.nn import Linear, LocalCommunicator, MergedColumnLinear, RMSNorm
from octavo.spec import ModelContext, ModelEntry, TokenizerData, WeightFormatEntry

ORIGIN = Origin("toy", "octavo-toy", "3.1")
KINDS = (
    "models",
    "weight_formats",
    "attention_backends",
    "kv_policies",
    "drafters",
    "logits_processors",
    "executors",
    "platforms",
    "tool_parsers",
    "reasoning_parsers",
    "commands",
    "routes",
    "model_transforms",
)


class ToyModel(nn.Module):
    """One fused layer, one plain one, one norm and a buffer."""

    def __init__(self, config, context) -> None:
        super().__init__()
        size = config["hidden_size"]
        self.fused = MergedColumnLinear(size, (size, 2 * size), context)
        self.plain = Linear(size, size, context, bias=True)
        self.norm = RMSNorm(size, 1e-6, context)
        self.register_buffer("scale", torch.empty(1))
        self.register_buffer("computed", torch.arange(3.0), persistent=False)
        self.packed_modules = {"fused": ("left", "right")}
        self.vocab_size = 4

    def ignored_weights(self):
        return [r"extra\..*"]


def toy_tensors(size: int = 4) -> dict[str, torch.Tensor]:
    shapes = {
        "left.weight": (size, size),
        "right.weight": (2 * size, size),
        "plain.weight": (size, size),
        "plain.bias": (size,),
        "norm.weight": (size,),
        "scale": (1,),
    }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class FakeSource:
    """A source in memory, which may promise other tensors than it gives."""

    def __init__(self, tensors, *, config=None, promised=None) -> None:
        self.path = "memory"
        self.config = {"architectures": ["ToyForCausalLM"], "hidden_size": 4} if config is None else config
        self.generation_config = {}
        self.given = list(tensors.items()) if isinstance(tensors, dict) else list(tensors)
        self.promised = [name for name, _ in self.given] if promised is None else promised

    def tensor_names(self):
        return self.promised

    def tensors(self, dtype):
        yield from self.given

    def tokenizer(self):
        raise NotImplementedError


def open_folder(path: str) -> FakeSource:
    source = FakeSource(toy_tensors())
    source.path = path
    return source


FORMAT = WeightFormatEntry(
    name="folder", can_read=lambda path: (Path(path) / "config.json").exists(), factory=open_folder
)


def extensions(*, broken=(), **offers) -> Extensions:
    """`extensions(models=[entry], model_transforms=[…])`; every offer comes from the toy plugin."""
    kinds = {"models": [ModelEntry(name="ToyForCausalLM", factory=ToyModel)], "weight_formats": [FORMAT], **offers}
    return Extensions(
        broken=broken,
        **{
            kind: Registry(kind, {entry.name: Offer(entry, ORIGIN) for entry in kinds.get(kind, ())}, broken)
            for kind in KINDS
        },
    )


@pytest.fixture
def context() -> ModelContext:
    return ModelContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        block_size=16,
        max_model_len=32,
        communicator=LocalCommunicator(),
    )


def byte_level(bos: bool = False) -> TokenizerData:
    """A tokenizer of 256 bytes and three special tokens; with `bos`, one that begins every text with <s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>", "<|im_end|>")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return TokenizerData(
        tokenizer_json=tokenizer.to_str(),
        bos_token="<s>",
        eos_tokens=("</s>",),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        chat_template=None,
    )


@pytest.fixture
def toy():
    return SimpleNamespace(
        Model=ToyModel,
        Source=FakeSource,
        tensors=toy_tensors,
        extensions=extensions,
        format=FORMAT,
        byte_level=byte_level,
        with_template=lambda template, **kw: replace(byte_level(**kw), chat_template=template),
    )
