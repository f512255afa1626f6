"""From the bytes of a request's body to its record, with errors that name the field.

An optional field that is null counts as left out: every such field of a record has the type `… | None`.
Owns: decoding, and what becomes of unknown fields. Must never know: which records there are.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from octavo_openai.errors import APIError
from octavo_openai.http.item_count import check_items

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

_MISSING = re.compile(r"Object missing required field `(\w+)`")
_MAX_SEARCHED_BYTES = 1 << 16
"""A body in which a bad value is looked for, which takes up to 30 ms in the event loop."""
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*?)`$")


def decode_body(raw: bytes, kind: type[T], max_items: int) -> tuple[T, list[str]]:
    """The record in `raw`, and the paths of fields that it does not know. Raises `APIError` (400).

    Lists and mappings may have `max_items` in all, as `check_items` counts.
    """
    try:
        tree = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise _unreadable(raw, error) from None
    check_items(tree, max_items)
    try:
        record = msgspec.convert(tree, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise APIError(400, "the body is nested too deep", code="invalid_json") from None
    return record, list(_unknown_fields(tree, record, ""))


def refuse_unknown(paths: list[str]) -> None:
    if paths:
        raise APIError(400, f"{paths[0]}: no such field", param=paths[0], code="unknown_field")


def required(value: V | None, path: str) -> V:
    """The value of a field that records know as optional, for only some of them must have it. Raises `APIError`."""
    if value is None:
        raise _missing(path)
    return value


def _missing(path: str) -> APIError:
    return APIError(400, f"{path}: is required", param=path, code="missing_field")


def _unreadable(raw: bytes, error: Exception) -> APIError:
    """Names the field where nothing but its value is at fault, unless the body is so long that this takes long."""
    with contextlib.suppress(ValueError, RecursionError):
        tree = json.loads(raw.decode(), parse_int=float) if len(raw) <= _MAX_SEARCHED_BYTES else None
        if found := next(_unusable(tree, ""), None):
            path, fault = found
            return APIError(400, f"{path or 'the body'}: {fault}", param=path or None, code="invalid_value")
    return APIError(400, f"the body is not JSON that can be read: {error}", code="invalid_json")


def _unusable(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Where a tree holds what a text can say but nothing can hold, and what it is."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _unusable(name, path)
            yield from _unusable(below, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, below in enumerate(value):
            yield from _unusable(below, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, "the number is out of range or not finite"
    elif isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        yield path, "the text holds half of a surrogate pair"


def _invalid(error: msgspec.ValidationError) -> APIError:
    message, place = str(error), ""
    if match := _PLACE.search(message):
        message, place = message[: match.start()], match[1]
    if match := _MISSING.fullmatch(message):
        place = f"{place}.{match[1]}" if place else match[1]
        return _missing(place)
    message = message.replace("`", "").replace("Expected", "expected", 1)
    return APIError(400, f"{place or 'the body'}: {message}", param=place or None, code="invalid_type")


def _unknown_fields(tree: Any, value: Any, path: str) -> Iterator[str]:
    """Fields of the mappings in `tree` that the records made of them lack. Null ones count as left out."""
    if isinstance(value, msgspec.Struct) and isinstance(tree, dict):
        known = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        for name, below in tree.items():
            if name in known:
                yield from _unknown_fields(below, getattr(value, known[name]), f"{path}{name}.")
            elif below is not None:
                yield f"{path}{name}"
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        for i, (below, item) in enumerate(zip(tree, value, strict=True)):
            yield from _unknown_fields(below, item, f"{path[:-1]}[{i}].")
