"""Contract of platforms: one kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory."""

    total: int
    available: int


class Platform(Protocol):
    """A kind of device. Built by `factory()`; platforms of higher priority are asked first."""

    device_type: str
    """As torch names it: `cpu`, `cuda`."""

    def unavailable(self) -> str | None:
        """Why this machine cannot use it, or None if it can."""
        ...

    def device(self) -> torch.device: ...

    def preferred_dtype(self) -> tuple[str, str]:
        """The dtype for `auto`, and why."""
        ...

    def supported_dtypes(self) -> frozenset[str]: ...

    def memory(self) -> MemoryInfo: ...

    def peak_memory(self) -> int | None:
        """Highest use in bytes since `reset_peak_memory`; None where it cannot be told cheaply.

        Where it can, the start runs a step of the largest size to see what is left for the KV cache.
        """
        ...

    def reset_peak_memory(self) -> None: ...

    def configure(self, num_threads: int | None) -> None:
        """Set up the process (threads)."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was launched."""
        ...
