"""What the engine reads out of a model's own configuration.

Owns: the meaning of Hugging Face's keys that concern the engine. Must never know: torch, architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelLoadError
from octavo.spec import Tokenizer

_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_LIMIT = 2**63
"""Of lengths and factors: far beyond any model, and products still fit a float."""


def derive_max_model_len(config: Mapping[str, Any]) -> int:
    """Longest sequence that the model is meant for, in tokens; the default of `model.max_model_len`.

    Linear scaling and YaRN stretch it by their factor. Dynamic NTK scaling does not: it changes the rotation of
    every position as soon as the length passes the trained one (see `octavo.nn.rotary`), so going up to
    `extended_max_model_len` is left to the user.
    """
    longest = next((config[key] for key in _LENGTH_KEYS if config.get(key) is not None), 2048)
    _check_length("max_position_embeddings", longest)
    rope_type, factor, scaling = _rope(config)
    if rope_type == "linear":
        return int(longest * factor)
    if rope_type == "yarn":
        original = config.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
        _check_length("original_max_position_embeddings", original := original or longest)
        return max(longest, int(original * factor))
    return longest


def extended_max_model_len(config: Mapping[str, Any]) -> int:
    """Longest sequence that a user may ask for."""
    rope_type, factor, _ = _rope(config)
    longest = derive_max_model_len(config)
    return int(longest * factor) if rope_type == "dynamic" else longest


def _rope(config: Mapping[str, Any]) -> tuple[str, float, Mapping[str, Any]]:
    """Kind of rope scaling, its factor, and its other keys."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ModelLoadError(f"the config's rope scaling makes no sense: {scaling!r} is no mapping")
    factor = scaling.get("factor") or 1.0
    if not isinstance(factor, int | float) or not 0 < factor < _LIMIT:
        raise ModelLoadError(f"the config's rope scaling makes no sense: its factor is {factor!r}")
    return scaling.get("rope_type") or scaling.get("type") or "default", float(factor), scaling


def _check_length(key: str, length: Any) -> None:
    if not isinstance(length, int) or not 0 < length < _LIMIT:
        raise ModelLoadError(f"the config's {key} is {length!r}, not a positive whole number")


def eos_token_ids(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> frozenset[int]:
    """Every id that ends a sequence: those of the generation config, the config and the tokenizer together.

    To leave the generation config out, pass an empty one. Raises `ModelLoadError` for ids that are no numbers.
    """
    ids: set[int] = set(tokenizer.eos_token_ids) if tokenizer else set()
    for where, holder in (("generation_config", generation_config), ("config", config)):
        given = holder.get("eos_token_id")
        for token_id in given if isinstance(given, list | tuple) else [given]:
            if token_id is None:
                continue
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise ModelLoadError(f"{where}: eos_token_id holds {token_id!r}, which is no token id")
            ids.add(token_id)
    return frozenset(ids)
