"""How many things the body of a request may consist of, for each of them takes time while nobody else is served.

Owns: that count and its limit. Must never know: which records there are.
"""

from __future__ import annotations

from typing import Any

from octavo_openai.errors import APIError

_LIMITED_ELSEWHERE = frozenset({"prompt", "tokens", "logit_bias"})
"""Fields of prompts and of token ids, which are counted as such."""


def check_items(tree: Any, limit: int) -> None:
    """Count the items of all lists and mappings in a decoded body, and stop at the first that are too many.

    Lists of numbers do not count: they cost little, and have limits of their own. Raises `APIError` (400) for the
    field in which `limit` is passed.
    """
    if not isinstance(tree, dict):
        return
    left = limit - len(tree)
    if left < 0:
        raise _too_large("the body", None, limit)
    for name, field in tree.items():
        pending = [] if name in _LIMITED_ELSEWHERE else [field]
        while pending:
            items = _items(pending.pop())
            left -= len(items)
            if left < 0:
                raise _too_large(name, name, limit)
            pending += items


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list) or set(map(type, value)) <= {int, float}:
        return []
    return value


def _too_large(what: str, param: str | None, limit: int) -> APIError:
    message = f"{what}: is too large: all lists and objects of a request may have {limit} items; send fewer"
    return APIError(400, message, param=param, code="invalid_value")
