"""Constraints of requests: one normal form, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo import SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequestError
from octavo.structured_outputs import KINDS, MAX_DEPTH

EXAMPLES: dict[str, Any] = {
    "json": {"type": "object"},
    "json_object": True,
    "regex": "[0-9]+",
    "choice": ["yes", "no"],
    "grammar": 'root ::= "a"',
    "structural_tag": {"type": "structural_tag"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_taken_alone_and_not_with_another(kind: str) -> None:
    params = StructuredOutputsParams(**{kind: EXAMPLES[kind]})
    assert params.kind == kind
    assert params.source
    other = next(k for k in KINDS if k != kind)
    with pytest.raises(InvalidRequestError, match=f"{kind}|{other}"):
        StructuredOutputsParams(**{kind: EXAMPLES[kind], other: EXAMPLES[other]})


def test_a_schema_has_one_spelling_and_keeps_the_order_of_its_keys() -> None:
    schema = {"type": "object", "properties": {"zoë": {"enum": ["é", "日本"]}, "a": {}}}
    spellings = [schema, json.dumps(schema), json.dumps(schema, ensure_ascii=False, indent=3)]
    (text,) = {StructuredOutputsParams(json=spelling).source for spelling in spellings}
    assert list(json.loads(text)["properties"]) == ["zoë", "a"]
    assert "日本" in text


def test_pydantic_models_are_schemas() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Person", name=(str, ...), age=(int, 3))
    assert json.loads(StructuredOutputsParams(json=model).source) == model.model_json_schema()


@pytest.mark.parametrize("schema", [True, False, {}])
def test_the_schemas_that_are_no_object_are_schemas_too(schema: Any) -> None:
    assert json.loads(StructuredOutputsParams(json=schema).source) == schema


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("json", "not json", "is not JSON"),
        ("json", "[1]", "must be a JSON object"),
        ("json", 3, "must be a JSON object"),
        ("json", {"a": float("nan")}, "cannot be written as JSON"),
        ("json", {"a": object()}, "cannot be written as JSON"),
        ("json", {"const": "\ud800"}, "cannot be written as JSON"),
        ("json", "[" * 100_000, "nested"),
        ("json_object", 1, "true or false"),
        ("regex", "", "not empty"),
        ("regex", 5, "text"),
        ("choice", [], "1 to 10000 entries, got 0"),
        ("choice", "yes", "list of texts"),
        ("choice", ["a", ""], "not empty"),
        ("choice", ["a", 1], "text"),
        ("choice", [["a"]], "text"),
        ("choice", [str(i) for i in range(20_000)], "1 to 10000 entries"),
        ("choice", iter("ab"), "list of texts"),
        ("choice", {"a", "b"}, "list of texts"),
        ("choice", ["\ud800"], "Unicode"),
        ("regex", "\ud800", "Unicode"),
        ("grammar", "  ", "not empty"),
        ("structural_tag", [], "must be a JSON object"),
    ],
)
def test_malformed_constraints_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        StructuredOutputsParams(**{field: value})
    assert caught.value.field == "structured_outputs"


def test_depth_is_limited_exactly() -> None:
    def nested(depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range(depth - 1):
            schema = {"items": schema}
        return schema

    StructuredOutputsParams(json=nested(MAX_DEPTH))
    with pytest.raises(InvalidRequestError, match="deep"):
        StructuredOutputsParams(json=nested(MAX_DEPTH + 1))


def test_sampling_params_take_a_mapping_and_name_an_unknown_field() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a"], "any_whitespace": True})  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputsParams(choice=["a"], any_whitespace=True)
    with pytest.raises(InvalidRequestError, match=r"no field 'chioce'; did you mean 'choice'"):
        SamplingParams(structured_outputs={"chioce": ["a"]})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="got list"):
        SamplingParams(structured_outputs=["a"])  # type: ignore[arg-type]


def test_a_class_without_a_schema_says_why() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Odd", call=(type(lambda: 0), ...), __config__={"arbitrary_types_allowed": True})
    with pytest.raises(InvalidRequestError, match="has no JSON schema"):
        StructuredOutputsParams(json=model)


def test_shared_parts_count_each_time() -> None:
    schema: list[Any] = []
    for _ in range(60):
        schema = [schema, schema]
    with pytest.raises(InvalidRequestError, match="objects and lists"):
        StructuredOutputsParams(json={"enum": schema})
