"""Gives every attention layer its backend and its part of the KV cache.

Owns: the choice of a backend for each KV cache group, and the memory. Must never know: what a backend computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from octavo.errors import ConfigError, PluginError
from octavo.extensions import Extensions, Offer
from octavo.nn import Attention
from octavo.runner.devices import DeviceChoice
from octavo.spec import (
    AttentionBackend,
    AttentionBackendEntry,
    AttentionLayerParams,
    KVCacheLayout,
    KVCacheSpec,
)


def bind_kv_cache(
    layers: Mapping[str, Attention],
    specs: Mapping[str, KVCacheSpec],
    layout: KVCacheLayout,
    backend_name: str,
    extensions: Extensions,
    choice: DeviceChoice,
) -> tuple[list[AttentionBackend], list[str]]:
    """Bind all layers; the backend of each KV cache group, and a line about each for the log."""
    backends, lines = [], []
    for group_id, (names, num_blocks) in enumerate(zip(layout.groups, layout.num_blocks, strict=True)):
        spec = specs[names[0]]
        group_layers = [layers[name].params for name in names]
        offer, why = choose_backend(group_layers, spec, backend_name, extensions, choice)
        backend = offer.make(extensions.options_of(offer))
        for name in names:
            layers[name].bind(backend, _allocate(backend, spec, num_blocks, choice), group_id)
        backends.append(backend)
        lines.append(f"{offer.entry.name} for {len(names)} layers of {type(spec).__name__} ({why})")
    return backends, lines


def choose_backend(
    layers: Sequence[AttentionLayerParams],
    spec: KVCacheSpec,
    configured: str,
    extensions: Extensions,
    choice: DeviceChoice,
) -> tuple[Offer[AttentionBackendEntry], str]:
    """The backend for one KV cache group, and why it.

    Raises `ConfigError` if the configured backend cannot serve the layers or none can, with each one's reason.
    """
    distinct = list(dict.fromkeys(layers))
    refusals: dict[str, str] = {}
    usable: list[Offer[AttentionBackendEntry]] = []
    registry = extensions.attention_backends
    for offer in [registry.find(configured)] if configured != "auto" else registry.values():
        reason = _refusal(offer.entry, distinct, spec, choice)
        if reason is None:
            usable.append(offer)
        else:
            refusals[offer.entry.name] = reason
    reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
    if not usable:
        hint = reasons or registry.not_found(configured)
        raise ConfigError(f"attention.backend: none can serve this model: {hint}")
    if configured != "auto":
        return usable[0], "as configured"
    names = tuple(o.entry.name for o in usable)
    for chooser in extensions.backend_choosers:
        try:
            name = chooser.entry(distinct[0], spec, choice.device.type, choice.dtype_name, names)
        except Exception as error:
            raise PluginError(f"plugin {chooser.origin} failed to choose an attention backend: {error!r}") from error
        if name is not None:
            if name not in names:
                raise PluginError(f"plugin {chooser.origin} chose attention backend {name!r}, which cannot serve")
            return next(o for o in usable if o.entry.name == name), f"chosen by {chooser.origin.plugin}"
    best = max(usable, key=lambda o: o.entry.priority)
    return best, "highest priority" + (f"; {reasons}" if reasons else "")


def _refusal(
    entry: AttentionBackendEntry, layers: Sequence[AttentionLayerParams], spec: KVCacheSpec, choice: DeviceChoice
) -> str | None:
    refusals = (entry.capabilities.refusal(p, spec, choice.device.type, choice.dtype_name) for p in layers)
    return entry.unavailable() or next((r for r in refusals if r is not None), None)


def _allocate(
    backend: AttentionBackend, spec: KVCacheSpec, num_blocks: int, choice: DeviceChoice
) -> torch.Tensor:  # [*backend.kv_shape(spec, num_blocks)]
    shape = tuple(backend.kv_shape(spec, num_blocks))
    if choice.device.type != "cpu":
        return torch.zeros(shape, dtype=choice.dtype, device=choice.device)
    # numpy leaves zeroed pages untouched until they are used; torch.zeros would write all of them at start.
    num_bytes = math.prod(shape) * choice.dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(choice.dtype).view(shape)
