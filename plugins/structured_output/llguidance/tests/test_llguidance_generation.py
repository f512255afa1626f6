"""Whole outputs of an engine: constrained, ended, and failed alone."""

from __future__ import annotations

import json

import pytest

from octavo import SamplingParams, StructuredOutputsParams
from octavo.request import FinishReason
from octavo.testing.table_model import table_llm
from octavo_llguidance import plugin

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["a kind", "another"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm():
    return table_llm(vocabulary="bytes", plugins=[plugin])


def generate(llm, count=1, **constraint):
    options = {key: constraint.pop(key) for key in ("ignore_eos", "max_tokens") if key in constraint}
    params = SamplingParams(
        temperature=1.0, seed=1, n=count, structured_outputs=StructuredOutputsParams(**constraint), **options
    )
    return llm.generate("Hi", params)[0].outputs


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_outputs_satisfy_their_schema(llm, ignore_eos):
    for output in generate(llm, 4, json=SCHEMA, ignore_eos=ignore_eos, max_tokens=100):
        value = json.loads(output.text)
        assert output.finish_reason is FinishReason.STOP
        assert set(value) == {"name", "kind"}
        assert len(value["name"]) <= 5
        assert value["kind"] in SCHEMA["properties"]["kind"]["enum"]


def test_an_output_that_never_has_to_end(llm):
    (output,) = generate(llm, regex="[0-9]+", ignore_eos=True, max_tokens=20)
    assert output.text.isdigit()
    assert output.finish_reason is FinishReason.LENGTH


def test_forced_text_as_drafts_changes_nothing(llm):
    without = table_llm(vocabulary="bytes", plugins=[plugin], jump_forward=False)
    constraint = {"json": SCHEMA, "max_tokens": 100}
    assert [o.token_ids for o in generate(llm, 3, **constraint)] == [
        o.token_ids for o in generate(without, 3, **constraint)
    ]


def test_a_request_that_fails_fails_alone(llm):
    constraints = [{"regex": "[0-9]{3}"}, {"json": {"type": "array", "uniqueItems": True}}, {"choice": ["yes", "no"]}]
    params = [SamplingParams(structured_outputs=constraint) for constraint in constraints]
    outputs = [output.outputs[0] for output in llm.generate(["a"] * 3, params)]
    assert [o.finish_reason for o in outputs] == [FinishReason.STOP, FinishReason.ERROR, FinishReason.STOP]
    assert "uniqueItems" in outputs[1].error
    assert outputs[0].text.isdigit()
    assert outputs[2].text in ("yes", "no")
