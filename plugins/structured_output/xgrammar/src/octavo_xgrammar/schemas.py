"""Brings a JSON schema into a form that xgrammar 0.2 enforces in full, or says which keyword stands in the way.

Owns: references, `allOf` and siblings (merged), `oneOf` (proved exclusive), types that are left out, what cannot be
satisfied, and the list of what is refused. Must never know: the grammar's notation, xgrammar's Python API.

What each keyword means: JSON Schema 2020-12 (Core and Validation), with the draft-4 spellings that are still met.
xgrammar takes no notice of many keywords, of most siblings of `$ref`, `anyOf` and `enum`, and of keywords without
`type`; README.md has the list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from octavo_xgrammar import meeting, numeric, regexes, spelling, strings
from octavo_xgrammar.meeting import Unsatisfiable, not_enforced, types_of
from octavo_xgrammar.regexes import Refused

MAX_NODES = 20_000
_MAX_DEPTH = 400
_MAX_COMBINATIONS = 64
_MAX_NESTED_CHOICES = 8
_UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}


class SchemaReader:
    """Reads one schema. `rules` then has the EBNF of what a placeholder, a constant of that name, stands for.

    `escapes_names` says whether a name of a property is spelt with escapes.
    """

    def __init__(self, schema: Any, *, closed_objects: bool, exact_repeats: int) -> None:
        self._root, self._closed, self._exact_repeats = schema, closed_objects, exact_repeats
        self._prefix = "@"
        while self._prefix in json.dumps(schema):
            self._prefix += "@"
        self._num_nodes = 0
        self._defs: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.escapes_names = False

    def read(self) -> dict[str, Any]:
        """The schema for xgrammar. Raises `Refused`."""
        try:
            normal = self._normal(self._root, "$", 0)
        except Unsatisfiable as error:
            raise Refused(f"nothing satisfies the schema: {error}") from None
        finite = self._finite_defs()
        for pointer, name in self._names.items():
            if name not in finite:
                raise Refused(f"nothing satisfies the schema: {pointer} contains itself without end")
        return {**normal, "$defs": self._defs} if self._defs else normal

    def _normal(self, schema: Any, path: str, depth: int) -> dict[str, Any]:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES or depth > _MAX_DEPTH:
            raise Refused(
                f"the schema has more than {MAX_NODES} parts or {_MAX_DEPTH} levels with allOf, anyOf, $ref worked out"
            )
        if isinstance(schema, Mapping):
            constraints = meeting.constraints(schema, path, is_root=schema is self._root)
            if constraints.keys() == {"$ref"}:
                return {"$ref": f"#/$defs/{self._definition(constraints['$ref'], path, depth)}"}
        simple, choices = self._flatten(schema, path)
        if not choices:
            return self._node(simple, path, depth)
        keyword, branches, place = choices[0]
        if keyword == "oneOf":
            self._check_exclusive(branches, place)
        rest = [{name: others} for name, others, _ in choices[1:]]
        unevaluated = {k: simple.pop(k) for k in _UNEVALUATED if k in simple}
        ways: list[dict[str, Any]] = []
        unsatisfied = f"{place}.{keyword} has no branch"
        for i, branch in enumerate(branches):
            both = {"allOf": [simple, branch, *rest], **unevaluated} if simple or rest or unevaluated else branch
            try:
                ways.append(self._normal(both, f"{place}.{keyword}[{i}]", depth + 1))
            except Unsatisfiable as error:
                unsatisfied = str(error)
        if not ways:
            raise Unsatisfiable(unsatisfied)
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _definition(self, pointer: str, path: str, depth: int) -> str:
        """The name in `$defs` of what a reference names."""
        target = self._target(pointer, path)
        if pointer not in self._names:
            self._names[pointer] = name = f"d{len(self._names)}"
            self._defs[name] = None  # being worked out
            self._defs[name] = self._normal(target, pointer, depth + 1)
        return self._names[pointer]

    def _target(self, pointer: str, path: str) -> Any:
        if pointer != "#" and not pointer.startswith("#/"):
            raise Refused(f"$ref {pointer!r} at {path}: only references into the schema itself, #/…, are followed")
        target = self._root
        for step in pointer.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(step)] if isinstance(target, list) else target[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Refused(f"$ref {pointer!r} at {path}: there is no {step!r}") from None
        return target

    def _flatten(self, schema: Any, path: str) -> tuple[dict[str, Any], list[tuple[str, list[Any], str]]]:
        """All of `schema` that holds together, in one mapping, and the `anyOf` and `oneOf` that come on top."""
        simple: dict[str, Any] = {}
        choices: list[tuple[str, list[Any], str]] = []
        followed: set[str] = set()
        stack = [(schema, path)]
        while stack:
            part, place = stack.pop(0)
            if part is True:
                continue
            if part is False:
                raise Unsatisfiable(f"{place} is false")
            keywords = meeting.constraints(part, place, is_root=part is self._root)
            pointer = keywords.pop("$ref", None)
            if pointer is not None and pointer not in followed:
                followed.add(pointer)
                stack.append((self._target(pointer, place), pointer))
            stack += [(branch, f"{place}.allOf[{i}]") for i, branch in enumerate(keywords.pop("allOf", ()))]
            choices += [(k, keywords.pop(k), place) for k in ("anyOf", "oneOf") if k in keywords]
            if part is not schema:  # unevaluated… sees what stands inside of it, not what stands beside it
                for new, old in _UNEVALUATED.items():
                    if new in keywords:
                        keywords.setdefault(old, keywords[new])
                        del keywords[new]
            simple = meeting.meet(simple, keywords, place)
        return simple, choices

    def _check_exclusive(self, branches: list[Any], path: str) -> None:
        """xgrammar would take `oneOf` for `anyOf`; that is right where no value satisfies two branches."""
        ways = [self._ways(branch, f"{path}.oneOf[{i}]") for i, branch in enumerate(branches)]
        for j in range(len(branches)):
            for i in range(j):
                if not all(self._exclusive(a, b, 0) for a in ways[i] for b in ways[j]):
                    raise Refused(
                        f"oneOf at {path} is not enforced by xgrammar where branches overlap, as {i} and {j} may; "
                        "write anyOf, or give each branch a required property with a const of its own"
                    )

    def _ways(self, schema: Any, path: str, depth: int = 0) -> list[dict[str, Any]]:
        """The schema as alternatives without `anyOf`, `oneOf`, `$ref` at their top."""
        if depth > _MAX_NESTED_CHOICES:
            raise Refused(f"oneOf at {path} is too deep to prove it exclusive; write anyOf")
        try:
            simple, choices = self._flatten(schema, path)
        except Unsatisfiable:
            return []
        ways = [simple]
        for _, branches, place in choices:
            if len(ways) * len(branches) > _MAX_COMBINATIONS:
                raise Refused(f"oneOf at {path} has too many combinations to prove it exclusive; write anyOf")
            nested = [way for branch in branches for way in self._ways(branch, place, depth + 1)]
            combined = []
            for a in ways:
                for b in nested:
                    try:
                        combined.append(meeting.meet(a, b, place))
                    except Unsatisfiable:
                        continue
            ways = combined
        return ways

    def _exclusive(self, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
        """Whether it is certain that no value satisfies both."""
        try:
            both = meeting.meet(a, b, "$")
        except Unsatisfiable:
            return True
        except Refused:
            return False
        if "enum" in both and not any(meeting.may_satisfy(value, both) for value in both["enum"]):
            return True
        for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
            if low in both and high in both and both[low] > both[high] and len(types_of(both)) == 1:
                return True
        if types_of(both) != ("object",) or depth > _MAX_NESTED_CHOICES:
            return False
        for name in both.get("required", ()):
            for one, other in ((a, b), (b, a)):
                lacks = name not in one.get("properties", {}) and "patternProperties" not in one
                if lacks and one.get("additionalProperties") is False and name in other.get("required", ()):
                    return True  # what is not said may be anything; only an explicit false excludes
            parts = [self._ways(side.get("properties", {}).get(name, True), "$") for side in (a, b)]
            if all(self._exclusive(x, y, depth + 1) for x in parts[0] for y in parts[1]):
                return True
        return False

    def _node(self, simple: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        """A schema without references and alternatives."""
        if not simple:
            return {}
        if "enum" in simple:
            values = [value for value in simple["enum"] if meeting.satisfies(value, simple, path)]
            if not values:
                raise Unsatisfiable(f"no value of enum or const at {path} fits the rest of the schema")
            return {"enum": values}
        writers: dict[str, Callable[[], dict[str, Any]]] = {
            "object": lambda: self._object(simple, path, depth),
            "array": lambda: self._array(simple, path, depth),
            "string": lambda: self._placed(strings.string(simple, path, self._exact_repeats)),
            "integer": lambda: numeric.integer(simple, path),
            "number": lambda: self._placed(numeric.number(simple, path)),
            "boolean": lambda: {"type": "boolean"},
            "null": lambda: {"type": "null"},
        }
        ways, unsatisfied = [], path
        for name in types_of(simple):
            try:
                ways.append(writers[name]())
            except Unsatisfiable as error:
                unsatisfied = str(error)
        if not ways:
            raise Unsatisfiable(unsatisfied)
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _placed(self, written: str | dict[str, Any]) -> dict[str, Any]:
        """A schema; for EBNF a constant in whose place it will be put."""
        if isinstance(written, dict):
            return written
        known = next((name for name, rule in self.rules.items() if rule == written), None)
        name = known or f"{self._prefix}{len(self.rules)}{self._prefix}"
        self.rules[name] = written
        return {"const": name}

    def _array(self, simple: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        least, most = simple.get("minItems", 0), simple.get("maxItems", math.inf)
        if simple.get("uniqueItems") and most > 1:
            raise not_enforced("uniqueItems", path)
        prefix: list[Any] = []
        items = simple.get("items", simple.get("unevaluatedItems", True))
        try:
            for i, item in enumerate(simple.get("prefixItems", [])[: None if most == math.inf else most]):
                prefix.append(self._normal(item, f"{path}.prefixItems[{i}]", depth + 1))
            rest = self._normal(items, f"{path}.items", depth + 1)
        except Unsatisfiable as error:
            most, rest = min(most, len(prefix)), False
            if least > most:
                raise Unsatisfiable(str(error)) from None
        if least > most:
            raise Unsatisfiable(f"minItems is above maxItems at {path}")
        written: dict[str, Any] = {"type": "array", "items": rest if most > len(prefix) else False}
        if prefix and most > 0:
            written["prefixItems"] = prefix
        if least:
            written["minItems"] = least
        if most != math.inf:
            written["maxItems"] = most
        return written

    def _object(self, simple: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        patterns, required = simple.get("patternProperties", {}), list(simple.get("required", ()))
        others = simple.get("additionalProperties", simple.get("unevaluatedProperties"))
        closed = others is False or (others is None and bool(patterns or (self._closed and "properties" in simple)))
        self._check_names(simple, closed, path)
        properties: dict[str, Any] = {}
        for name in [*simple.get("properties", {}), *(n for n in required if n not in simple.get("properties", {}))]:
            place = f"{path}.properties.{name}"
            self.escapes_names |= "\\" in json.dumps(name, ensure_ascii=False)
            try:
                properties[name] = self._normal(self._property(simple, name, others, path), place, depth + 1)
            except Unsatisfiable as error:
                if name in required:
                    raise
                if not closed:
                    raise Refused(f"{error}; to forbid one property, add additionalProperties false") from None
        written: dict[str, Any] = {"type": "object"}
        if properties:
            written["properties"] = properties
        if required:
            written["required"] = required
        written["additionalProperties"] = False if closed else self._others(others, path, depth)
        if patterns:
            key = "|".join(f"(?:{pattern})" for pattern in patterns)
            value = self._normal(next(iter(patterns.values())), f"{path}.patternProperties", depth + 1)
            written["patternProperties"] = {spelling.key_pattern(regexes.anywhere(regexes.parse(key))): value}
        elif "propertyNames" in simple and not properties:
            try:
                written["propertyNames"] = self._key(simple["propertyNames"], path)
            except Unsatisfiable:
                written["additionalProperties"] = False
        return written | self._num_properties(simple, written, path)

    def _others(self, others: Any, path: str, depth: int) -> Any:
        try:
            return self._normal(True if others is None else others, f"{path}.additionalProperties", depth + 1) or True
        except Unsatisfiable:
            return False

    def _property(self, simple: dict[str, Any], name: str, others: Any, path: str) -> Any:
        """The schema of one property, which the object may only require, or name by a pattern."""
        if name in simple.get("properties", {}):
            return simple["properties"][name]
        matching = [schema for p, schema in simple.get("patternProperties", {}).items() if re.search(p, name)]
        if matching:
            return matching[0]
        if others is False:
            raise Unsatisfiable(f"{path} requires {name!r}, which additionalProperties forbids")
        return True if others is None else others

    def _check_names(self, simple: dict[str, Any], closed: bool, path: str) -> None:
        """Refuse the ways to constrain names that xgrammar does not combine."""
        patterns, named = (
            simple.get("patternProperties", {}),
            {*simple.get("properties", ()), *simple.get("required", ())},
        )
        if "propertyNames" in simple and (patterns or named):
            raise not_enforced("propertyNames", path, "next to properties, required or patternProperties")
        if patterns and not closed:
            raise not_enforced("patternProperties", path, "next to additionalProperties other than false")
        if len({json.dumps(schema, sort_keys=True) for schema in patterns.values()}) > 1:
            raise not_enforced("patternProperties", path, "with several patterns that may match one name")
        for pattern in patterns:
            regexes.parse(pattern)  # raises what is wrong with it
            try:
                both = next((name for name in sorted(named) if re.search(pattern, name)), None)
            except re.error as error:
                raise Refused(f"patternProperties at {path}: {error}") from None
            if both is not None:
                raise not_enforced("patternProperties", path, f"whose pattern matches the property {both!r}")

    def _key(self, names: Any, path: str) -> dict[str, Any]:
        """The schema of names, as a pattern or a list."""
        place = f"{path}.propertyNames"
        simple, choices = self._flatten(names, place)
        if choices or not {"type", "enum", "pattern", "minLength", "maxLength"} >= simple.keys():
            raise not_enforced("propertyNames", path, "with more than a pattern, lengths or an enum")
        if "string" not in types_of({"type": simple.get("type", "string")}):
            raise Unsatisfiable(f"{place} allows no name")
        if "enum" in simple:
            names = [v for v in simple["enum"] if isinstance(v, str) and meeting.satisfies(v, simple, place)]
            if not names:
                raise Unsatisfiable(f"{place} allows no name")
            return {"enum": names}
        if "pattern" in simple:
            if simple.keys() & {"minLength", "maxLength"}:
                raise not_enforced("propertyNames", path, "with a pattern and lengths together")
            return {"pattern": spelling.key_pattern(regexes.anywhere(regexes.parse(simple["pattern"])))}
        any_name = regexes.Repeat(spelling.UNESCAPED, simple.get("minLength", 0), simple.get("maxLength"))
        return {"pattern": spelling.key_pattern(any_name)}

    def _num_properties(self, simple: dict[str, Any], written: dict[str, Any], path: str) -> dict[str, Any]:
        least, most = simple.get("minProperties", 0), simple.get("maxProperties", math.inf)
        num_required, num_named = len(written.get("required", ())), len(written.get("properties", {}))
        is_open = written["additionalProperties"] is not False or "patternProperties" in written
        if least > most or num_required > most or (not is_open and least > num_named):
            raise Unsatisfiable(f"minProperties, maxProperties and required contradict each other at {path}")
        if is_open and least > max(1, num_required):
            raise not_enforced("minProperties", path, "of objects with other than named properties, which may repeat,")
        bounds = {"minProperties": least} if least > num_required else {}
        return bounds | ({"maxProperties": most} if most < (math.inf if is_open else num_named) else {})

    def _finite_defs(self) -> set[str]:
        """Definitions that something finite satisfies: the least fixed point."""
        finite: set[str] = set()
        while True:
            more = {name for name, schema in self._defs.items() if _is_finite(schema, finite)}
            if more == finite:
                return finite
            finite = more


def _is_finite(schema: Any, finite: set[str]) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] in finite
    if "anyOf" in schema:
        return any(_is_finite(way, finite) for way in schema["anyOf"])
    if schema.get("type") == "object":
        return all(_is_finite(schema["properties"][name], finite) for name in schema.get("required", ()))
    if schema.get("type") == "array" and schema.get("minItems"):
        prefix = schema.get("prefixItems", [])[: schema["minItems"]]
        needed = [*prefix, schema["items"]] if schema["minItems"] > len(prefix) else prefix
        return all(_is_finite(item, finite) for item in needed)
    return True
