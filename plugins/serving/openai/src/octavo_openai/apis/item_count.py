"""How many things the body of a request may consist of, for each of them takes time while nobody else is served.

Owns: that count and its limit. Must never know: which records there are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.errors import InvalidRequestError

_LIMITED_ELSEWHERE = "prompt"
"""The field whose items are counted as prompts, or as tokens."""


def check_items(body: Any, limit: int) -> None:
    """Count the items of all lists and mappings in a record, and stop at the first that are too many.

    Numbers in lists and mappings from token ids do not count: they cost little, and have limits of their own.
    Raises `InvalidRequestError` for the field in which `limit` is passed.
    """
    left = limit
    for name, field in zip(body.__struct_encode_fields__, body.__struct_fields__, strict=True):
        pending = [] if field == _LIMITED_ELSEWHERE else [getattr(body, field)]
        while pending:
            value = pending.pop()
            if isinstance(value, msgspec.Struct):
                pending += [getattr(value, inner) for inner in value.__struct_fields__]
                continue
            items = _items(value)
            left -= len(items)
            if left < 0:
                raise InvalidRequestError(
                    name, f"is too large: all lists and objects of a request may have {limit} items; send fewer"
                )
            pending += items


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [] if value and isinstance(next(iter(value)), int) else list(value.values())
    if not isinstance(value, list) or set(map(type, value)) <= {int, float}:
        return []
    return value
