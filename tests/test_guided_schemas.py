"""Constrained output always parses: every schema of the collection, both backends, with drafts and without.

The model is the scripted one, which has no idea of JSON, with a taste for what closes strings, lists and objects.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import octavo_llguidance.plugin
import octavo_ngram.plugin
import octavo_xgrammar.plugin
from octavo import SamplingParams, StructuredOutputsParams
from octavo.request import FinishReason
from octavo.testing.table_model import table_llm

FILE = Path(__file__).parent / "data" / "json_schemas.jsonl"
RECORDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
BACKENDS = ("xgrammar", "llguidance")
NUM_PARTS = 6
"""A part of the schemas is one batch, so that many grammars meet in a step."""
PROMPT = list(range(30, 60))
CLOSERS = {'"': 5.0, "}": 5.0, "]": 6.0, ",": 3.0, "n": 3.0}
"""Logit biases."""


@cache
def engine(drafter: str) -> Any:
    return table_llm(
        plugins=[octavo_ngram.plugin, octavo_xgrammar.plugin, octavo_llguidance.plugin],
        vocabulary="bytes",
        drafter=drafter,
        num_draft_tokens=4,
        num_blocks=4000,
    )


def params_for(backend: str, schema: Any, seed: int) -> SamplingParams:
    tokenizer = engine("none").get_tokenizer()
    closers = {tokenizer.encode(text, add_special_tokens=False)[0]: bias for text, bias in CLOSERS.items()}
    return SamplingParams(
        temperature=0.0 if seed % 2 else 0.8,
        seed=seed,
        max_tokens=470,
        logit_bias=closers,
        structured_outputs=StructuredOutputsParams(json=schema, backend=backend),
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_output_is_valid_and_drafts_change_none(backend: str, part: int) -> None:
    records = RECORDS[part::NUM_PARTS]
    params = [params_for(backend, record["schema"], seed) for seed, record in enumerate(records)]
    plain, drafted = (engine(drafter).generate([PROMPT] * len(records), params) for drafter in ("none", "ngram"))
    wrong = []
    for record, one, other in zip(records, plain, drafted, strict=True):
        completion = one.outputs[0]
        assert other.outputs[0].token_ids == completion.token_ids, record["name"]
        problem = problem_with(completion, record["schema"])
        if problem is not None:
            wrong.append(f"{record['name']}: {problem}: {completion.text[:300]}")
    assert not wrong, "\n".join(wrong)


def problem_with(completion: Any, schema: Any) -> str | None:
    if completion.finish_reason is not FinishReason.STOP:
        return f"{completion.finish_reason} {completion.error or ''}"
    try:
        value = json.loads(completion.text)
        jsonschema.validate(value, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None
