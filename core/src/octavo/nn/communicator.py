"""The communicator of a world of one.

Owns: `LocalCommunicator`. Must never know: processes, devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LocalCommunicator:
    """One rank that holds everything; every collective is the identity."""

    rank: int = 0
    world_size: int = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor
