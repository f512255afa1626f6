"""Constraints to try grammar backends with, and texts that do and do not satisfy them.

Owns: `Constraint`, `CONSTRAINTS`, `BROKEN`. Must never know: backends, tokenizers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.structured_outputs import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint, as fields of `StructuredOutputsParams`, and what is known about it."""

    fields: Mapping[str, Any]
    valid: Sequence[str]
    """Whole outputs."""
    invalid: Sequence[str]
    """Texts that are no whole output: wrong somewhere, or too short, or too long."""
    check: Callable[[str], bool] | None = None
    """Whether a text is a whole output, if there is a way to tell without a grammar backend."""

    @property
    def params(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(**self.fields)

    def __str__(self) -> str:
        """An id for pytest."""
        return f"{self.params.kind}-{re.sub(r'[^a-zA-Z0-9]+', '-', self.params.source)[:24].strip('-')}"


def _parsed(text: str) -> Any:
    """The JSON value of a compact text; raises ValueError."""
    value = json.loads(text)
    if text != text.strip():
        raise ValueError("whitespace around it")
    return value


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _json(is_valid: Callable[[Any], bool]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            return is_valid(_parsed(text))
        except ValueError:
            return False

    return check


def _is_person(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "age"} <= set(value) <= {"name", "age", "tags"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 5
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value.get("tags", []) in ([], ["é"], ["the"], ["é", "é"], ["é", "the"], ["the", "é"], ["the", "the"])
    )


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["é", "the"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_ANY_OF = {"anyOf": [{"enum": ["red", 12, None]}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}]}
_WORD = "(foo|fóó)+[0-9]{2}"

CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        {"json": _PERSON},
        ('{"name":"the","age":12}', '{"name":"","age":0,"tags":["é","the"]}', '{"name":"é\\n\\"x","age":120}'),
        ('{"name":"the"}', '{"name":"the","age":121}', '{"name":"toolong","age":1}', '{"name":"a","age":1,"b":2}', ""),
        _json(_is_person),
    ),
    Constraint(
        {"json": _ANY_OF},
        ('"red"', "12", "null", "[]", "[true,false,true]"),
        ('"blue"', "1", "[null]", "[true,true,true,true]", '"red', "[true,]"),
        _json(lambda v: v in ("red", 12, None) or (isinstance(v, list) and len(v) < 4 and set(map(type, v)) <= {bool})),
    ),
    Constraint(
        {"json_object": True},
        ("{}", '{"a":[1,-2.5e3,null,true,"x"],"é":{"":{}}}'),
        ("[]", '"a"', '{"a":1', '{"a":1}}', "{a:1}", '{"a":01}'),
        _json(lambda v: isinstance(v, dict)),
    ),
    Constraint(
        {"regex": _WORD}, ("foo12", "fóófoo07"), ("foo", "foo1", "foo123", "12", "foofo12", ""), _matches(_WORD)
    ),
    Constraint({"regex": "[a-c]*the?"}, ("th", "the", "abcabcthe"), ("thee", "abcd", "t"), _matches("[a-c]*the?")),
    Constraint(
        {"choice": ["yes", "no", "nope", "né", "the end"]},
        ("yes", "no", "nope", "né", "the end"),
        ("ye", "yesno", "nop", "n", "the", "Yes", ""),
        lambda text: text in ("yes", "no", "nope", "né", "the end"),
    ),
)
BROKEN: tuple[Mapping[str, Any], ...] = (
    {"regex": "[a"},
    {"regex": "(a|b"},
    {"json": {"type": "str"}},
    {"json": {"$ref": "#/$defs/nowhere"}},
    {"grammar": "root ::= ("},
    {"grammar": "start: undefined_rule"},
)
"""Constraints that are well formed as requests and that no backend can compile."""
