"""The data that benchmarks and the composition tests run on: what it must cover, and that it says so truly."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

DATA = Path(__file__).parent / "data"
FEATURES = (
    "array",
    "array_bounds",
    "array_of_objects",
    "tuple",
    "nested_object",
    "deep_nesting",
    "enum_string",
    "enum_number",
    "enum_null",
    "enum_mixed",
    "enum_non_ascii",
    "const",
    "anyof",
    "oneof",
    "type_list",
    "ref",
    "recursion",
    "integer_range",
    "number_range",
    "negative_range",
    "exclusive_range",
    "string_length",
    "unbounded_string",
    "pattern",
    "additional_true",
    "additional_false",
    "additional_schema",
    "optional",
    "all_required",
    "boolean",
    "nullable",
    "unicode_name",
    "format:date",
    "format:date-time",
    "format:time",
    "format:email",
    "format:uuid",
    "format:ipv4",
    "format:uri",
)
UNENFORCEABLE = [
    "multipleOf",
    "uniqueItems",
    "contains",
    "patternProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "allOf",
    "minProperties",
    "maxProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
]
DEEP = 5
"""Objects and arrays inside each other, the outermost one included."""


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


SCHEMAS = lines_of("json_schemas.jsonl")


def children(schema: Any) -> Iterator[Any]:
    """The schemas directly below `schema`, definitions left out."""
    yield from schema.get("properties", {}).values()
    for keyword in ("prefixItems", "anyOf", "oneOf"):
        yield from schema.get(keyword, ())
    yield from (schema[k] for k in ("items", "additionalProperties") if isinstance(schema.get(k), dict))


def every(schema: Any) -> Iterator[Any]:
    yield schema
    for child in [*children(schema), *schema.get("$defs", {}).values()]:
        yield from every(child)


def depth(schema: Any, defs: dict[str, Any], open_refs: frozenset[str] = frozenset()) -> int:
    """Objects and arrays inside each other; a recursive reference counts as nothing."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return 0 if name in open_refs else depth(defs[name], defs, open_refs | {name})
    below = max((depth(child, defs, open_refs) for child in children(schema)), default=0)
    return below + (schema.get("type") in ("object", "array"))


def is_recursive(schema: Any) -> bool:
    defs = schema.get("$defs", {})

    def reaches(start: str, target: str, seen: set[str]) -> bool:
        refs = {s["$ref"].rpartition("/")[2] for s in every(defs[start]) if "$ref" in s}
        new = refs - seen
        return target in refs or any(reaches(name, target, seen | refs) for name in new)

    return any(reaches(name, name, set()) for name in defs)


def features_of(schema: Any) -> set[str]:
    """Which of the features a schema has, in any of its parts."""
    found = {f for part in every(schema) for f in features_of_part(part)}
    defs = schema.get("$defs", {})
    if depth(schema, defs) >= DEEP:
        found.add("deep_nesting")
    if is_recursive(schema):
        found.add("recursion")
    return found


def features_of_part(part: dict[str, Any]) -> Iterator[str]:
    kinds = part.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(part.get("type"), list):
        yield "type_list"
    if kinds == ["boolean"]:
        yield "boolean"
    if "null" in kinds or {"type": "null"} in part.get("anyOf", ()):
        yield "nullable"
    if "$ref" in part:
        yield "ref"
    for keyword in ("const", "pattern", "anyOf", "oneOf"):
        if keyword in part:
            yield keyword.lower()
    if "format" in part:
        yield f"format:{part['format']}"
    yield from _features_of_object(part, kinds)
    yield from _features_of_array(part, kinds)
    yield from _features_of_value(part, kinds)


def _features_of_object(part: dict[str, Any], kinds: list[str]) -> Iterator[str]:
    properties = part.get("properties", {})
    if any(child.get("type") == "object" for child in properties.values()):
        yield "nested_object"
    if any(not name.isascii() for name in properties):
        yield "unicode_name"
    if properties:
        yield "all_required" if set(properties) == set(part.get("required", ())) else "optional"
    if "object" in kinds:
        rest = part.get("additionalProperties", True)
        yield "additional_schema" if isinstance(rest, dict) else f"additional_{str(rest).lower()}"


def _features_of_array(part: dict[str, Any], kinds: list[str]) -> Iterator[str]:
    if "array" not in kinds:
        return
    if "prefixItems" in part:
        yield "tuple"
        return
    yield "array"
    if part["items"].get("type") == "object":
        yield "array_of_objects"
    yield "array_bounds" if "minItems" in part or "maxItems" in part else "array_unbounded"


def _features_of_value(part: dict[str, Any], kinds: list[str]) -> Iterator[str]:
    values = part.get("enum", ())
    named = {type(value).__name__ for value in values}
    named.discard("float" if "int" in named else "")
    if "str" in named:
        yield "enum_string"
    if named & {"int", "float"}:
        yield "enum_number"
    if "NoneType" in named:
        yield "enum_null"
    if len(named) > 1:
        yield "enum_mixed"
    if any(isinstance(value, str) and not value.isascii() for value in values):
        yield "enum_non_ascii"
    limits = [part[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in part]
    if limits:
        yield "number_range" if "number" in kinds else "integer_range"
    if any(limit < 0 for limit in limits):
        yield "negative_range"
    if "exclusiveMinimum" in part or "exclusiveMaximum" in part:
        yield "exclusive_range"
    if "minLength" in part or "maxLength" in part:
        yield "string_length"
    elif kinds == ["string"] and not part.keys() & {"enum", "pattern", "format", "const"}:
        yield "unbounded_string"


def test_there_are_at_least_200_schemas_and_no_two_are_the_same() -> None:
    assert len(SCHEMAS) >= 200
    assert len({entry["name"] for entry in SCHEMAS}) == len(SCHEMAS)
    assert len({json.dumps(entry["schema"], sort_keys=True) for entry in SCHEMAS}) == len(SCHEMAS)


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_has_at_least_eight_schemas(feature: str) -> None:
    assert sum(feature in entry["tags"] for entry in SCHEMAS) >= 8


def test_some_schemas_are_eight_levels_deep() -> None:
    assert max(depth(entry["schema"], entry["schema"].get("$defs", {})) for entry in SCHEMAS) >= 8


@pytest.mark.parametrize("entry", SCHEMAS, ids=lambda entry: entry["name"])
def test_a_schema_is_valid_can_be_satisfied_and_has_the_tags_that_it_claims(entry: dict[str, Any]) -> None:
    schema = entry["schema"]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert len(entry["instances"]) == 2
    for instance in entry["instances"]:
        validator.validate(instance)
    claimed = {tag for tag in entry["tags"] if not tag.startswith("domain:")}
    assert claimed == features_of(schema)
    assert len(entry["tags"]) == len(claimed) + 1, "one domain"
    used = {keyword for part in every(schema) for keyword in part}
    assert not used & set(UNENFORCEABLE)


def test_schemas_turn_down_what_is_wrong() -> None:
    """A schema that takes anything would prove nothing about the output that it guides."""
    wrong: list[Any] = [[[]], {"\u0000": {"\u0000": []}}, "\u0000", 1e300, None]
    for entry in SCHEMAS:
        validator = Draft202012Validator(entry["schema"])
        assert sum(not validator.is_valid(value) for value in wrong) >= 4, entry["name"]


def test_prompts_that_repeat_their_input_hold_80_to_250_words_and_differ_in_kind() -> None:
    prompts = lines_of("repeat_input_prompts.jsonl")
    assert len(prompts) >= 24
    assert len({p["name"] for p in prompts}) == len(prompts)
    kinds = Counter(tag for p in prompts for tag in p["tags"])
    assert min(kinds[kind] for kind in ("prose", "code", "json", "csv")) >= 2
    for prompt in prompts:
        assert [m["role"] for m in prompt["messages"]] == ["user"]
        _, _, given = prompt["messages"][0]["content"].partition("\n\n")
        num_words = len(re.findall(r"\w+", given))
        assert 80 <= num_words <= 250, (prompt["name"], num_words)


def test_open_chat_prompts_are_conversations_that_end_with_the_user() -> None:
    prompts = lines_of("open_chat_prompts.jsonl")
    assert len(prompts) >= 20
    assert len({p["name"] for p in prompts}) == len(prompts)
    for prompt in prompts:
        roles = [m["role"] for m in prompt["messages"]]
        spoken = roles[roles[0] == "system" :]
        assert spoken == ["user", "assistant"] * (len(spoken) // 2) + ["user"]
        assert all(m["content"].strip() for m in prompt["messages"])


def test_agent_sessions_share_system_texts_and_repeat_outputs() -> None:
    sessions = lines_of("agent_sessions.jsonl")
    assert len(sessions) >= 6
    assert len({s["name"] for s in sessions}) == len(sessions)
    assert len({s["system"] for s in sessions}) < len(sessions)
    assert {s["history"] for s in sessions} == {True, False}
    seen: set[tuple[str, ...]] = set()
    for i, session in enumerate(sessions):
        assert len(session["turns"]) >= 6
        assert all(example["user"] and example["answer"] for example in session["examples"])
        repeated = total = 0
        for turn in session["turns"]:
            words = turn["expected"].split()
            runs = set(zip(*(words[i:] for i in range(3)), strict=False))
            repeated, total = repeated + len(runs & seen), total + len(runs)
            seen |= runs
        assert repeated >= total * (0.3 if i == 0 else 0.5), session["name"]
