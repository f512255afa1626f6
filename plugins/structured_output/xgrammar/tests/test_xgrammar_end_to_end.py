"""Through the engine: outputs have the form that was asked for, and a bad request ends alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.structured_outputs import StructuredOutputsParams
from octavo_xgrammar import plugin

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["the", "and", None]},
    },
    "required": ["name", "age", "kind"],
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"json": PERSON},
    {"json": PERSON, "any_whitespace": True},
    {"regex": "[0-9]{3}-(the|and)+x"},
    {"choice": ["the one", "the other", "日本"]},
    {"grammar": 'root ::= "(" root ")" | "the" | "and"'},
]


def check(constraint: dict[str, Any], text: str) -> None:
    if "json" in constraint:
        value = json.loads(text)
        assert list(value) == ["name", "age", "kind"]
        assert len(value["name"]) <= 5
        assert 0 <= value["age"] <= 150
        assert value["kind"] in PERSON["properties"]["kind"]["enum"]
        if "any_whitespace" not in constraint:
            assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False) or "\\" in text
    elif "regex" in constraint:
        assert re.fullmatch(constraint["regex"], text)
    elif "choice" in constraint:
        assert text in constraint["choice"]
    else:
        assert re.fullmatch(r"\(*(the|and)\)*", text)
        assert text.count("(") == text.count(")")


@pytest.fixture(scope="module")
def llm(tiny_model):
    return LLM(str(tiny_model("llama")), plugins=[plugin], dtype="float32", device="cpu", num_blocks=256, num_threads=1)


def outputs(llm: Any, constraints: list[dict[str, Any]], **sampling: Any) -> list[str]:
    params = [SamplingParams(structured_outputs=StructuredOutputsParams(**c), **sampling) for c in constraints]
    return [output.outputs[0].text for output in llm.generate(["the and"] * len(params), params)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_have_the_form(llm, temperature):
    constraints = CONSTRAINTS * 2
    biased = {"logit_bias": dict.fromkeys(llm.get_tokenizer().encode("( 日\n"), -30.0)}
    sampling = {"temperature": temperature, "seed": 7, "max_tokens": 120, **biased}
    texts = outputs(llm, constraints, **sampling)
    for constraint, text in zip(constraints, texts, strict=True):
        check(constraint, text)
    assert texts == [outputs(llm, [constraint], **sampling)[0] for constraint in constraints]


def test_bad_requests_end_alone(llm):
    bad = [{"regex": "(?=a)"}, {"json": {"not": {"type": "null"}}}, {"grammar": "root ::= x"}, {"regex": "[a"}]
    params = [
        SamplingParams(structured_outputs=constraint, max_tokens=8, temperature=0.0)
        for constraint in [{"choice": ["and"]}, *bad, {"regex": "the( the)*"}]
    ]
    first, *failed, last = llm.generate(["a"] * len(params), params)
    assert first.outputs[0].text == "and"
    assert last.outputs[0].text.startswith("the")
    for output, word in zip(failed, ("lookahead", "not at $", 'Rule "x"', "not closed"), strict=True):
        assert output.outputs[0].finish_reason == "error"
        assert word in str(output)


def test_without_eos_the_output_ends_where_it_is_whole(llm):
    params = SamplingParams(structured_outputs={"choice": ["the"]}, max_tokens=50, ignore_eos=True, temperature=0.0)
    (output,) = llm.generate(["a"], params)
    assert output.outputs[0].text == "the"
    assert output.outputs[0].finish_reason == "stop"
