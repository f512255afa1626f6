"""Keywords of a JSON schema: which constrain, which are refused, and what two sets of them amount to together.

Owns: `constraints`, `meet`, `satisfies`. Must never know: references, the grammar's notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from octavo_xgrammar.regexes import Refused


class Unsatisfiable(Exception):
    """Nothing satisfies this part of the schema; the message says why."""


def _is_size(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_schema, value.values()))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_SIZE, _NUMBER, _SCHEMA = (_is_size, "a whole number from 0"), (_is_number, "a number"), (_is_schema, "a schema")
_SCHEMAS, _MAPPING = (_is_schemas, "a list of schemas that is not empty"), (_is_mapping, "a mapping of schemas")
_TEXT = (_is_text, "a text")
MEANINGS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "$ref": _TEXT,
    "type": (_is_types, f"one or more of {', '.join(_TYPES)}"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list that is not empty"),
    "const": (lambda value: True, "any value"),
    "allOf": _SCHEMAS,
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "properties": _MAPPING,
    "patternProperties": _MAPPING,
    "additionalProperties": _SCHEMA,
    "unevaluatedProperties": _SCHEMA,
    "propertyNames": _SCHEMA,
    "required": (_is_names, "a list of names"),
    "minProperties": _SIZE,
    "maxProperties": _SIZE,
    "prefixItems": _SCHEMAS,
    "items": (lambda value: _is_schema(value) or _is_schemas(value), "a schema"),
    "additionalItems": _SCHEMA,
    "unevaluatedItems": _SCHEMA,
    "minItems": _SIZE,
    "maxItems": _SIZE,
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "minLength": _SIZE,
    "maxLength": _SIZE,
    "pattern": _TEXT,
    "format": _TEXT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    "exclusiveMaximum": (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
}
"""The keywords that constrain and are enforced, and what their values must be."""
REFUSED = frozenset(
    {"not", "if", "contains", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"}
)
"""Keywords that constrain and that xgrammar takes no notice of."""
_NEAR = {keyword.lower(): keyword for keyword in (*MEANINGS, *REFUSED)}
_TYPE_OF = {
    "object": "properties patternProperties additionalProperties unevaluatedProperties propertyNames required "
    "minProperties maxProperties",
    "array": "prefixItems items unevaluatedItems minItems maxItems uniqueItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
}
_TYPES_BY_WORD = {word: name for name, words in _TYPE_OF.items() for word in words.split()}
_NUMERIC_FORMATS = re.compile(r"u?int(8|16|32|64)|float|double")
_SMALLEST = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_LARGEST = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_BOTH = frozenset({"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"})


def not_enforced(keyword: str, path: str, where: str = "") -> Refused:
    """The refusal of a keyword; `where` says under which circumstances."""
    where = f" {where}" if where else ""
    return Refused(f"{keyword} at {path}{where} is not enforced by xgrammar; remove it, or ask for another backend")


def constraints(schema: Any, path: str, is_root: bool) -> dict[str, Any]:
    """The keywords that constrain, checked, with old spellings made new. Annotations and unknown keywords go."""
    if not isinstance(schema, Mapping):
        raise Refused(f"{path} is no JSON schema but {json.dumps(schema)[:80]}")
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in REFUSED:
            if value not in ({}, []) or keyword == "contains":
                raise not_enforced(keyword, path)
        elif keyword in MEANINGS:
            allowed, what = MEANINGS[keyword]
            if not allowed(value):
                if keyword == "enum" and value == []:
                    raise Unsatisfiable(f"enum at {path} is empty")
                raise Refused(f"{keyword} at {path} must be {what}, not {json.dumps(value)[:80]}")
            kept[keyword] = int(value) if allowed is _is_size else value
        elif keyword.lower() in _NEAR:
            raise Refused(f"{keyword} at {path} is no keyword; did you mean {_NEAR[keyword.lower()]}?")
        elif keyword == "$id" and not is_root:
            raise not_enforced("$id", path, "below the top of the schema")
    return _modern(kept, path)


def _modern(kept: dict[str, Any], path: str) -> dict[str, Any]:
    """Draft 4 to 2019 spelt in the way of 2020-12; `const` as an `enum` of one."""
    if isinstance(kept.get("items"), list):
        kept["prefixItems"] = kept.pop("items")
        if "additionalItems" in kept:
            kept["items"] = kept["additionalItems"]
    kept.pop("additionalItems", None)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(kept.get(exclusive), bool) and kept.pop(exclusive) and bound in kept:
            kept[exclusive] = kept.pop(bound)
    if "const" in kept:
        value = kept.pop("const")
        kept = meet(kept, {"enum": [value]}, path)
    return kept


def key_of(value: Any) -> str:
    """The same text for equal JSON values, and only for them."""

    def plain(part: Any) -> Any:
        if isinstance(part, float) and part.is_integer():
            return int(part)
        if isinstance(part, list):
            return [plain(item) for item in part]
        return {k: plain(v) for k, v in part.items()} if isinstance(part, Mapping) else part

    return json.dumps(plain(value), sort_keys=True)


def types_of(simple: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that are allowed; without `type`, those that the other keywords are about."""
    given = simple.get("type")
    if given is None:
        numeric = _NUMERIC_FORMATS.fullmatch(simple.get("format", ""))
        words = {"number" if word == "format" and numeric else _TYPES_BY_WORD.get(word) for word in simple}
        about = [name for name in _TYPES if name in words]
        return tuple(about) or tuple(name for name in _TYPES if name != "integer")
    names = [given] if isinstance(given, str) else given
    return tuple(n for n in dict.fromkeys(names) if not (n == "integer" and "number" in names))


def meet(a: dict[str, Any], b: dict[str, Any], path: str) -> dict[str, Any]:
    """Keywords that hold where both sets hold."""
    if not a or not b:
        return dict(a or b)
    both = {**a, **b}
    lists = [{k: side[k] for k in ("prefixItems", "items") if k in side} for side in (a, b)]
    if "prefixItems" in both and all(lists) and lists[0] != lists[1]:
        raise not_enforced("prefixItems", path, "next to other items, as in allOf")
    for keyword in a.keys() & b.keys():
        both[keyword] = _meet_one(keyword, a[keyword], b[keyword], path)
    _meet_properties(a, b, both, path)
    return both


def _meet_one(keyword: str, a: Any, b: Any, path: str) -> Any:
    if a == b and type(a) is type(b):
        return a
    if keyword in _SMALLEST:
        return min(a, b)
    if keyword in _LARGEST:
        return max(a, b)
    if keyword in _BOTH:
        return {"allOf": [a, b]}
    if keyword == "type":
        return _meet_types(types_of({"type": a}), types_of({"type": b}), path)
    if keyword == "enum":
        keys = {key_of(value) for value in b}
        shared = [value for value in a if key_of(value) in keys]
        if not shared:
            raise Unsatisfiable(f"no value satisfies both enum or const at {path}")
        return shared
    if keyword == "required":
        return list(dict.fromkeys([*a, *b]))
    if keyword == "uniqueItems":
        return True
    if keyword == "properties":
        return {**a, **b}  # put right by _meet_properties
    raise not_enforced(keyword, path, "next to another one, as in allOf")


def _meet_types(a: tuple[str, ...], b: tuple[str, ...], path: str) -> list[str]:
    shared = [name for name in a if name in b]
    if ("number" in a and "integer" in b) or ("integer" in a and "number" in b):
        shared.append("integer")
    if not shared:
        raise Unsatisfiable(f"nothing at {path} is both {' or '.join(a)} and {' or '.join(b)}")
    return shared


def _meet_properties(a: dict[str, Any], b: dict[str, Any], both: dict[str, Any], path: str) -> None:
    """A property that one side names is, for the other side, an additional one."""
    sides = ((a, b), (b, a))
    if any("patternProperties" in x and y.keys() & {"properties", "additionalProperties"} for x, y in sides):
        raise not_enforced("patternProperties", path, "next to properties of another part, as in allOf")
    if "properties" not in both:
        return
    merged: dict[str, Any] = {}
    for name in both["properties"]:
        parts = []
        for side in (a, b):
            named = side.get("properties", {})
            part = named[name] if name in named else side.get("additionalProperties", True)
            if part is not True and part not in parts:
                parts.append(part)
        merged[name] = parts[0] if len(parts) == 1 else {"allOf": parts} if parts else True
    both["properties"] = merged


def _has_type(value: Any, names: tuple[str, ...]) -> bool:
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in names
    if isinstance(value, int | float):
        return "number" in names or ("integer" in names and value == int(value))
    return {str: "string", list: "array", dict: "object"}[type(value)] in names


def may_satisfy(value: Any, simple: Mapping[str, Any]) -> bool:
    """False only if it is certain that `value` does not satisfy the keywords."""
    try:
        return satisfies(value, simple, "")
    except Refused:
        return True


def satisfies(value: Any, simple: Mapping[str, Any], path: str) -> bool:
    """Whether a value of an `enum` satisfies the keywords next to it. Raises `Refused` where that is not looked at."""
    if "type" in simple and not _has_type(value, types_of(simple)):
        return False
    if isinstance(value, str):
        lens = simple.get("minLength", 0) <= len(value) <= simple.get("maxLength", len(value))
        if simple.keys() & {"pattern", "format"}:
            raise not_enforced("pattern or format", path, "next to enum or const")
        return lens
    if _is_number(value):
        above = value >= simple.get("minimum", value) and (
            "exclusiveMinimum" not in simple or value > simple["exclusiveMinimum"]
        )
        below = value <= simple.get("maximum", value) and (
            "exclusiveMaximum" not in simple or value < simple["exclusiveMaximum"]
        )
        if "multipleOf" in simple:
            raise not_enforced("multipleOf", path, "next to enum or const")
        return above and below
    group = {list: "array", dict: "object"}.get(type(value))
    if group and any(keyword in simple for keyword in _TYPE_OF[group].split()):
        raise not_enforced(f"enum or const of type {group}", path, f"next to other keywords about {group}s")
    return True
