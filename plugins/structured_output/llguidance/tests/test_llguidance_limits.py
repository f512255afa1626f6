"""What takes too long, too much memory, or the process with it ends its own request, and nothing else."""

from __future__ import annotations

import gc
import random

import psutil
import pytest

from octavo.errors import InvalidRequestError
from octavo.structured_outputs import StructuredOutputsParams

COSTLY = "((a{0,100}){0,100}){0,100}"
"""Compiles at once, and runs into a limit some tokens later."""


def references(depth):
    """A chain of references, one deeper than the other."""
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{depth}": {"type": "integer"}}}


def properties(count):
    return {"type": "object", "properties": {f"property {i}": {"type": "string"} for i in range(count)}}


HEAVY = {
    "time": ({"json": {"type": "integer", "multipleOf": 999_983}}, "longer than 0.5 s"),
    "stack": ({"json": references(5_000)}, "nested too deeply"),
    "size": ({"json": properties(20_000)}, "schema too large|nested too deeply|longer than"),
    "items": ({"json": properties(1_200)}, "llguidance"),
    "repetitions": ({"json": {"type": "number", "minimum": 1e-300, "maximum": 1e300}}, "range"),
}


@pytest.fixture(scope="module")
def strict(make_kit):
    return make_kit(compile_timeout=1.0)


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_too_heavy_is_refused(strict, name):
    constraint, message = HEAVY[name]
    with pytest.raises(InvalidRequestError, match=message) as caught:
        strict.matcher(**constraint)
    assert caught.value.field == "structured_outputs"
    assert strict.takes("[12]", json=references(1))


def test_memory_of_a_compilation_is_bounded(make_kit):
    kit = make_kit(max_compile_bytes=2**21)
    with pytest.raises(InvalidRequestError, match="more than 2097152 bytes of structured_outputs"):
        kit.matcher(choice=[f"{i:0100}" for i in range(5_000)])
    assert kit.takes("12", regex="[0-9]+")


def test_heavy_constraints_that_do_compile(kit):
    assert kit.takes("a" * 300, regex="a{0,100000}")
    assert kit.takes('"' + "a" * 300 + '"', json={"type": "string", "maxLength": 100_000})
    assert kit.takes("b" * 30 + "a" + "b" * 20, regex="[ab]*a[ab]{20}")
    assert kit.takes("[" * 60 + "]" * 60, json={"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}})


def test_a_limit_at_run_time_leaves_an_empty_row_and_the_others_alone(kit):
    costly, other = kit.matcher(regex=COSTLY), kit.matcher(regex="[ab]+")
    expected = kit.mask(other)
    (a,) = kit.tokenizer.ids("a")
    num_tokens = 0
    while True:
        rows = kit.masks((other, ()), (costly, [a]), (other, ()))
        assert rows[0] == rows[2] == [expected]
        if not rows[1][0] or not costly.accept(a):
            break
        num_tokens += 1
    assert costly.failure is None, "only a draft met the limit so far"
    while kit.mask(costly):
        assert costly.accept(a)
        num_tokens += 1
    assert "too many expressions" in costly.failure
    assert other.failure is None
    costly.rollback(num_tokens)
    assert kit.mask(costly) == kit.mask(kit.matcher(regex=COSTLY))


def test_a_grammar_that_one_sequence_used_up_serves_others(kit, monkeypatch):
    params, stops = StructuredOutputsParams(regex="[a-z]*a.{12}b"), frozenset({2})
    reference = kit.backend.compile(params).matcher(stops)
    at_start = kit.mask(reference)
    monkeypatch.setattr("octavo_llguidance.engine._MAX_LEXER_STATES", 500)
    compiled = kit.backend.compile(params)
    first, second = (compiled.matcher(stops) for _ in range(2))
    for token_id in kit.tokenizer.ids("".join(random.Random(0).choices("ab", k=60))):
        rows = kit.masks((reference, ()), (first, ()), (second, [token_id]), (compiled.matcher(stops), ()))
        assert rows[0][0] == rows[1][0] == rows[2][0]
        assert rows[3][0] == at_start
        assert all(matcher.accept(token_id) for matcher in (reference, first, second))
    assert "too many states" in first._limit, "and it went on"
    assert first.failure is None
    assert reference.failure is None


def test_text_that_is_forced_without_end_is_followed_token_by_token(kit):
    matcher = kit.matcher(grammar='start: a\na: "x" a')
    (x,) = kit.tokenizer.ids("x")
    for _ in range(3):
        assert set(matcher.forced_text()) <= {"x"}
        assert x in kit.mask(matcher)
        assert matcher.accept(x)


def test_children_end_with_their_backend(make_kit):
    kit = make_kit()
    kit.backend.compile(StructuredOutputsParams(regex="a"))
    (child,) = map(psutil.Process, kit.backend._library.rehearsal.pids)
    assert child.is_running()
    del kit
    gc.collect()
    assert not child.is_running()
