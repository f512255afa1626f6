"""Building a model and filling its parameters from a source: everything exactly once, or an error.

Owns: the way from checkpoint names to parameters, and its checks. Must never know: file formats, architectures.

Tied embeddings: the model's config decides. `tie_word_embeddings` true: the head shares the embedding's weight; a
`lm_head.weight` in the file is not used, with a warning if it differs. False (or the architecture's default): the
head must be in the file; if it is not, that is an error, never a silent tie.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo.errors import ModelLoadError, OctavoError, PluginError
from octavo.extensions import Extensions, Offer
from octavo.nn import fill_parameter
from octavo.spec import Model, ModelContext, ModelEntry, ModelSource, load_factory

logger = logging.getLogger(__name__)

ALWAYS_IGNORED = (r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)",)
"""Buffers that older checkpoints carry and every model computes for itself."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a checkpoint tensor goes."""

    parameter: str
    """Full name of the parameter in the model."""
    shard: int | None
    """Which part of a fused parameter it is; None: the whole."""


def load_model(
    source: ModelSource, extensions: Extensions, context: ModelContext, architecture: str | None = None
) -> Model:
    """The source's model, filled, transformed and ready for inference.

    `architecture` overrides the one that the config names. Parameters are made on the target device in the target
    dtype and filled one by one, so that no second copy of the weights exists at any time.
    Raises `ModelLoadError` if no plugin offers the architecture or the weights do not fit; `PluginError` if a
    transform fails.
    """
    offer = find_architecture(source.config, extensions, architecture)
    try:
        model = load_factory(offer.entry.factory)(source.config, context)
    except OctavoError:
        raise
    except Exception as error:
        raise ModelLoadError(
            f"{source.path}: {offer.entry.name} of plugin {offer.origin} cannot be built from the config: {error!r}"
        ) from error
    fill_model(model, source, context.dtype)
    return _transform(_frozen(model), extensions)


def find_architecture(
    config: Mapping[str, Any], extensions: Extensions, architecture: str | None = None
) -> Offer[ModelEntry]:
    """The first of the config's architectures that a plugin offers. Raises `ModelLoadError`."""
    named = [architecture] if architecture else config.get("architectures") or []
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise ModelLoadError("the model's config names no architecture; name one with model.architecture")
    for name in named:
        if name in extensions.models:
            return extensions.models[name]
    families = sorted({str(offer.origin) for offer in extensions.models.values()})
    raise ModelLoadError(
        f"{extensions.models.not_found(named[0])}; plugin families that were looked at: {', '.join(families) or 'none'}"
    )


def fill_model(model: Any, source: ModelSource, dtype: torch.dtype) -> None:
    """Fill every parameter of `model` from `source`. Raises `ModelLoadError` naming up to five tensors."""
    slots = _plan(model, source)
    wrong: list[str] = []
    pending = dict(slots)
    tied: dict[str, torch.Tensor] = {}
    tied_weights: Mapping[str, str] = getattr(model, "tied_weights", {})
    for name, tensor in source.tensors(dtype):
        if name in tied_weights:
            tied[name] = tensor
        slot = pending.pop(name, None)
        if slot is None:
            continue
        try:
            _fill(model, slot, tensor)
        except ModelLoadError as error:
            wrong.append(f"{name} {error}")
            if len(wrong) == 5:
                break
    if wrong:
        raise ModelLoadError(f"{source.path}: {'; '.join(wrong)}")
    if pending:
        raise ModelLoadError(f"{source.path}: the weights end without {_few(pending)}")
    for name, tensor in tied.items():
        embedding = model.get_parameter(tied_weights[name])
        if embedding.shape == tensor.shape and not torch.equal(embedding, tensor.to(embedding)):
            logger.warning(
                "%s: the config ties %s to %s, but the file holds another one, which is not used; "
                "if the output is poor, set tie_word_embeddings to false in config.json",
                source.path,
                name,
                tied_weights[name],
            )


def _plan(model: Any, source: ModelSource) -> dict[str, Slot]:
    """The slot of each tensor that the model wants. Raises `ModelLoadError` unless all slots are met exactly once."""
    counts = Counter(source.tensor_names())
    slots: dict[str, Slot] = {}
    for parameter in _names_to_fill(model):
        parts = _part_names(parameter, model.packed_modules)
        if parts and parameter not in counts:
            slots |= {name: Slot(parameter, shard) for shard, name in enumerate(parts)}
        else:
            slots[parameter] = Slot(parameter, None)
    ignored = re.compile("|".join(f"(?:{p})" for p in (*ALWAYS_IGNORED, *model.ignored_weights())))
    counts = {name: count for name, count in counts.items() if not ignored.fullmatch(name)}
    problems = [
        f"{what}: {_few(names)}"
        for what, names in (
            ("missing from the weights", [name for name in slots if name not in counts]),
            ("in the weights but unknown to the model", [name for name in counts if name not in slots]),
            ("in the weights twice", [name for name, count in counts.items() if count > 1]),
        )
        if names
    ]
    if problems:
        raise ModelLoadError(f"{source.path}: the weights do not fit {type(model).__name__}: {'; '.join(problems)}")
    return slots


def _names_to_fill(model: nn.Module) -> Iterable[str]:
    """Parameters and persistent buffers; shared ones once, under their first name."""
    persistent = model.state_dict(keep_vars=True).keys()
    yield from (name for name, _ in model.named_parameters())
    yield from (name for name, _ in model.named_buffers() if name in persistent)


def _part_names(parameter: str, packed_modules: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of the tensors that a fused parameter is loaded from; none if it is not fused.

    `a.qkv_proj.bias` is made of `a.q_proj.bias`, … under `{"qkv_proj": ("q_proj", …)}`.
    """
    path = parameter.split(".")
    fused = next((i for i, part in enumerate(path) if part in packed_modules), None)
    if fused is None:
        return []
    return [".".join((*path[:fused], part, *path[fused + 1 :])) for part in packed_modules[path[fused]]]


def _fill(model: nn.Module, slot: Slot, tensor: torch.Tensor) -> None:
    path, _, leaf = slot.parameter.rpartition(".")
    module = model.get_submodule(path)
    load_weight: Any = getattr(module, "load_weight", None)
    if load_weight is not None:
        load_weight(leaf, tensor, slot.shard)
    else:
        fill_parameter(getattr(module, leaf), tensor)


def _frozen(model: Any) -> Any:
    return model.eval().requires_grad_(False)


def _transform(model: Any, extensions: Extensions) -> Any:
    offers = sorted(extensions.model_transforms.values(), key=lambda offer: (offer.entry.priority, offer.entry.name))
    for offer in offers:
        try:
            model = load_factory(offer.entry.apply)(model, extensions.options_of(offer))
        except Exception as error:
            raise PluginError(f"plugin {offer.origin}: model transform {offer.entry.name!r}: {error!r}") from error
        if not isinstance(model, nn.Module):
            raise PluginError(
                f"plugin {offer.origin}: model transform {offer.entry.name!r} returned {model!r:.80}, not a model"
            )
    return _frozen(model) if offers else model


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
