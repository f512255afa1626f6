"""Hostile constraints end their own request with a clear error; fifteen requests beside them do not notice."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import pytest

import octavo_llguidance.plugin
import octavo_xgrammar.plugin
from octavo import SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequestError
from octavo.testing.table_model import table_llm
from octavo.testing.workload import check_nothing_left

TIMEOUT = 4.0
"""Seconds of `compile_timeout` here; the default is longer."""


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def long_references(depth: int) -> dict[str, Any]:
    """A chain of references that is deep only when it is followed."""
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{depth}": {"type": "integer"}}}


CHAIN = "\n".join(["root ::= r0", *(f'r{i} ::= r{i + 1} "a" | "b"' for i in range(8000)), 'r8000 ::= "c"'])
EBNF, LARK = {"backend": "xgrammar"}, {"backend": "llguidance"}
BOTH: tuple[dict[str, str], ...] = (EBNF, LARK)
HOSTILE: dict[str, tuple[dict[str, Any], tuple[dict[str, str], ...], str]] = {
    "never ends compiling (EBNF)": ({"grammar": CHAIN}, (EBNF,), "compile_timeout"),
    "never ends compiling (schema)": ({"json": {"type": "integer", "multipleOf": 999_983}}, (LARK,), "compile_timeout"),
    "exponential regex": ({"regex": "(((a{0,999}){0,999}){0,999}b|(a|aa)+){0,999}c"}, (EBNF,), "regex"),
    "a regex that grows on the way": ({"regex": "((a{0,100}){0,100}){0,100}"}, (LARK,), "too many"),
    "schema of 1 MB": ({"json": {"enum": [f"{i:0100}" for i in range(10_000)]}}, BOTH, "max_source_bytes"),
    "references 3,000 deep": ({"json": long_references(3_000)}, BOTH, "deep|size|large|long|parts"),
    "invalid regex": ({"regex": "[a"}, BOTH, "regex"),
    "invalid EBNF": ({"grammar": 'root ::= "a" | ('}, (EBNF,), "grammar"),
    "undefined rule": ({"grammar": "root ::= missing"}, (EBNF,), "missing"),
    "invalid Lark": ({"grammar": 'start: "a" | ('}, (LARK,), "grammar"),
    "invalid schema": ({"json": {"type": "str"}}, BOTH, "str"),
    "unsatisfiable schema": ({"json": {"enum": []}}, BOTH, "enum|nsatisfiable"),
    "contradiction": ({"json": {"type": "integer", "minimum": 5, "maximum": 1}}, BOTH, "minimum|maximum|range|bounds"),
    "a keyword that is not enforced": ({"json": {"type": "array", "uniqueItems": True}}, BOTH, "uniqueItems"),
}
"""What is asked for, of whom, and what the error must speak of."""
CASES = [(name, backend["backend"]) for name, (_, backends, _) in HOSTILE.items() for backend in backends]


@cache
def llm() -> Any:
    plugins = [octavo_xgrammar.plugin, octavo_llguidance.plugin]
    return table_llm(plugins=plugins, vocabulary="bytes", compile_timeout=TIMEOUT)


def good_params() -> list[SamplingParams]:
    constraints = ({"choice": ["yes", "no"]}, {"regex": "[ab]{3,9}"}, None)
    return [
        SamplingParams(
            temperature=0,
            max_tokens=12,
            ignore_eos=constraint is None,
            structured_outputs=constraint and StructuredOutputsParams(**constraint, backend=backend),
        )
        for backend in ("xgrammar", "llguidance")
        for constraint in constraints
    ]


@cache
def expected() -> list[tuple[int, ...]]:
    params = good_params()
    return [o.outputs[0].token_ids for o in llm().generate([[40, i] for i in range(len(params))], params)]


@pytest.mark.parametrize(("name", "backend"), CASES, ids=lambda value: value.replace(" ", "_"))
def test_it_ends_alone_and_soon(name: str, backend: str) -> None:
    constraint, _, message = HOSTILE[name]
    wanted, engine = expected(), llm().engine
    params = good_params()
    bad = SamplingParams(
        max_tokens=200, ignore_eos=True, structured_outputs=StructuredOutputsParams(**constraint, backend=backend)
    )
    started = time.monotonic()
    engine.add_request("bad", [41], bad)
    for round_ in range(3):  # 18 more
        for i, each in enumerate(params):
            engine.add_request(f"good-{round_}-{i}", [40, i], each)
    done: dict[str, Any] = {}
    order = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0]
                order.append(output.request_id)
    error = done.pop("bad").error
    assert error is not None
    assert error.startswith("structured_outputs: ")
    assert any(part in error for part in message.split("|")), error
    assert time.monotonic() - started < 10 * TIMEOUT, "a bound on a hang, not a measurement"
    for request_id, completion in done.items():
        assert completion.token_ids == wanted[int(request_id.rsplit("-", 1)[1])]
    if "never ends" in name:
        assert order[-1] == "bad", "nobody waited for it"
    check_nothing_left(engine)


@pytest.mark.parametrize(
    "constraint",
    [{"choice": []}, {"choice": [""]}, {"grammar": ""}, {"json": "not json"}, {"json": nested(500)}],
    ids=("empty choice", "empty text", "empty grammar", "no JSON", "500 deep"),
)
def test_what_means_nothing_is_refused_at_once(constraint: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        StructuredOutputsParams(**constraint)
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=json.loads(json.dumps(constraint)))
