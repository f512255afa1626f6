"""What of a JSON schema llguidance enforces: the rest is refused by name, or dropped if it says nothing.

llguidance itself refuses most keywords that it does not know. This looks for those that it would pass over.

Owns: `usable_schema`, `refuse`. Must never know: grammars, tokens, requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from octavo.errors import InvalidRequestError

_ITEMS = frozenset(("additionalItems", "contains", "items", "unevaluatedItems"))
_PROPERTIES = frozenset(("additionalProperties", "propertyNames", "unevaluatedProperties"))
_SCHEMA = _ITEMS | _PROPERTIES | {"else", "if", "not", "then"}
"""Keywords whose value is a schema (`items` may be a list of them)."""
_SCHEMAS = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
_NAMED_SCHEMAS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_LIMITS = frozenset(
    f"{side}{what}" for side in ("min", "max") for what in ("imum", "Length", "Items", "Contains", "Properties")
)
_VALUES = frozenset(("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "multipleOf", "pattern"))
_PRESENCE = frozenset(("dependencies", "dependentRequired", "required", "type", "uniqueItems"))
_ASSERTIONS = _SCHEMA | _SCHEMAS | _NAMED_SCHEMAS | _LIMITS | _VALUES | _PRESENCE
_BY_PLAIN_NAME = {name.lower(): name for name in _ASSERTIONS}
_FOREIGN = {
    "extends": "allOf",
    "disallow": "not",
    "divisibleBy": "multipleOf",
    "nullable": "a list of types with null",
    "x-guidance": "any_whitespace",
}
"""Keywords of older drafts, OpenAPI and llguidance itself, and what to use instead."""
_NUMBER_FORMATS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "uniqueItems": lambda value: value is False,
    "nullable": lambda value: value is False,
    "not": lambda value: value is False,
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "propertyNames"), lambda value: value in (True, {})),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), lambda value: value == {}),
}
"""Keywords that llguidance refuses whatever they say, and when they say nothing."""
_DAY = (
    r"([0-9]{4}-(0[13578]|1[02])-[0-9]{2}|[0-9]{4}-(0[469]|11)-([0-2][0-9]|30)|[0-9]{4}-02-([01][0-9]|2[0-8])"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
_STRICTER = {"date": f"^{_DAY}$", "date-time": f"^{_DAY}.{{7}}[0-5]", "time": "^.{6}[0-5]"}
"""llguidance allows 29 February in every year, and a 60th second in every minute (RFC 3339, section 5.7)."""
_WITHOUT_SHORT_ESCAPE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_CLASS = re.compile(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*)\]", re.DOTALL)
_CLASS_OPERATOR = re.compile(r"&&|--|~~|\[")


def refuse(message: str) -> InvalidRequestError:
    return InvalidRequestError("structured_outputs", message)


def usable_schema(schema: Any) -> dict[str, Any]:
    """The root schema, without what says nothing. Raises `InvalidRequestError` naming what would not be enforced."""
    if schema is False:
        raise refuse("nothing satisfies the schema false")
    return {} if schema is True else _usable(schema)


def _usable(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema  # true, false, or wrong: llguidance says so
    _check_keywords(schema)
    kept = {k: v for k, v in schema.items() if k not in _NEUTRAL or not _NEUTRAL[k](v)}
    _check_values(kept)
    if (fmt := kept.get("format")) in _STRICTER and isinstance(others := kept.get("allOf", []), list):
        kept["allOf"] = [*others, {"pattern": _STRICTER[fmt]}]
    for name, value in kept.items():
        if name in _NAMED_SCHEMAS and isinstance(value, Mapping):
            kept[name] = {key: _usable(child) for key, child in value.items()}
        elif name in _SCHEMAS and isinstance(value, list):
            kept[name] = [_usable(child) for child in value]
        elif name in _SCHEMA:
            kept[name] = _usable(value)
    return kept


def _check_keywords(schema: Mapping[str, Any]) -> None:
    for name, value in schema.items():
        if name in _FOREIGN and value is not False:
            raise refuse(f"{name} is not enforced; use {_FOREIGN[name]}")
        meant = _BY_PLAIN_NAME.get(re.sub(r"[-_ ]", "", name).lower())
        if meant is not None and name not in _ASSERTIONS:
            raise refuse(f"{name} is no keyword of JSON schemas; did you mean {meant!r}?")


def _check_values(schema: Mapping[str, Any]) -> None:
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    fmt = schema.get("format")
    if fmt == "unknown":
        raise refuse("format 'unknown' is not enforced; leave it out")
    if fmt in _NUMBER_FORMATS and isinstance(types, list) and "string" not in types:
        raise refuse(f"format {fmt!r} is not enforced; use minimum and maximum")
    required, least = schema.get("required", []), schema.get("minProperties", 0)
    if isinstance(required, list) and isinstance(least, int) and least > len(required):
        raise refuse("minProperties beyond the required ones is not enforced, for a name may come twice; use required")
    for pattern in (schema.get("pattern"), *_names(schema, "patternProperties")):
        if isinstance(pattern, str):
            _check_pattern(pattern)
    for where in ("const", "enum", "properties", "required"):
        # in properties, what belongs to a nested schema is for that one to check
        value = list(_names(schema, where)) if where == "properties" else schema.get(where)
        if any(_WITHOUT_SHORT_ESCAPE.search(text) for text in _texts(value)):
            raise refuse(f"{where} has a control character that is never written; leave it out")


def _names(schema: Mapping[str, Any], keyword: str) -> Iterator[str]:
    named = schema.get(keyword)
    return iter(named if isinstance(named, Mapping) else ())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield key
            yield from _texts(child)
    elif isinstance(value, list):
        for child in value:
            yield from _texts(child)


def _check_pattern(pattern: str) -> None:
    """llguidance reads patterns as Rust does, where sets of characters know operators that JSON schemas do not."""
    for found in _CLASS.finditer(pattern):
        operator = _CLASS_OPERATOR.search(re.sub(r"\\.", "", found[1] or "", flags=re.DOTALL))
        if operator:
            raise refuse(f"pattern has {operator[0]!r} within [ ], which means something else here; write it as \\…")
