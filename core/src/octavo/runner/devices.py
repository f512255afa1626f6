"""Which device and dtype a runner uses, and why.

Owns: that choice. Must never know: models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.config import ModelConfig
from octavo.errors import ConfigError
from octavo.extensions import Registry
from octavo.spec import Platform, PlatformEntry


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    platform: Platform
    device: Any
    """The `torch.device`."""
    dtype: Any
    """The `torch.dtype`."""
    dtype_name: str
    reasons: dict[str, str]
    """What was chosen and why, for the log."""


def choose_device(config: ModelConfig, platforms: Registry[PlatformEntry]) -> DeviceChoice:
    """The configured platform, or the one of highest priority that this machine has.

    Raises `ConfigError` if the configured device or dtype is not to be had.
    """
    import torch

    platform, device_reason = _platform(config.device, platforms)
    if config.dtype == "auto":
        dtype_name, dtype_reason = platform.preferred_dtype()
    else:
        dtype_name, dtype_reason = config.dtype, "as configured"
        if dtype_name not in platform.supported_dtypes():
            known = ", ".join(sorted(platform.supported_dtypes()))
            raise ConfigError(f"model.dtype: {platform.device_type} has no {dtype_name}; it has {known}")
    reasons = {
        "device": f"{platform.device_type} ({device_reason})",
        "dtype": f"{dtype_name} ({dtype_reason})",
    }
    return DeviceChoice(platform, platform.device(), getattr(torch, dtype_name), dtype_name, reasons)


def _platform(device: str, platforms: Registry[PlatformEntry]) -> tuple[Platform, str]:
    refused: list[str] = []
    offers = sorted(platforms.values(), key=lambda o: -o.entry.priority)
    for offer in offers if device == "auto" else [platforms.find(device)]:
        platform = offer.make()
        reason = platform.unavailable()
        if reason is None:
            why = "as configured" if device != "auto" else "; ".join(refused) or "highest priority"
            return platform, why
        refused.append(f"no {offer.entry.name}: {reason}")
    raise ConfigError(f"model.device: {'; '.join(refused)}")
