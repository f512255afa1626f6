from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from octavo.nn import LocalCommunicator
from octavo.spec import ModelContext


@dataclass(frozen=True)
class Apart:
    """A rank whose collectives leave its own part as it is, for tests that put the parts together themselves."""

    rank: int
    world_size: int

    def all_reduce(self, tensor):
        return tensor

    def all_gather(self, tensor):
        return tensor


@pytest.fixture
def make_context():
    def make(rank: int = 0, world_size: int = 1, dtype: torch.dtype = torch.float32) -> ModelContext:
        communicator = LocalCommunicator() if world_size == 1 else Apart(rank, world_size)
        return ModelContext(
            dtype=dtype,
            device=torch.device("cpu"),
            block_size=16,
            max_model_len=64,
            communicator=communicator,
        )

    return make
