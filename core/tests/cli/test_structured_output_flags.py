"""Flags of `octavo generate` and `octavo chat` that constrain the output."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from octavo import SamplingParams
from octavo.cli.sampling_options import add_sampling_options, sampling_changes
from octavo.errors import ConfigError, InvalidRequestError


def changes(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_sampling_options(parser, max_tokens=7)
    return sampling_changes(parser.parse_args(arguments))


def test_without_flags_nothing_is_constrained() -> None:
    assert changes() == {"max_tokens": 7}


@pytest.mark.parametrize(
    ("arguments", "kind", "source"),
    [
        (("--json-schema", '{"type": "object"}'), "json", '{"type":"object"}'),
        (("--json-object",), "json_object", "true"),
        (("--regex", "[0-9]+"), "regex", "[0-9]+"),
        (("--choice", "a", "--choice", "b"), "choice", '["a", "b"]'),
        (("--grammar", 'root ::= "a"'), "grammar", 'root ::= "a"'),
    ],
)
def test_each_flag_is_a_kind_of_constraint(arguments: tuple[str, ...], kind: str, source: str) -> None:
    params = SamplingParams(**changes(*arguments, "--any-whitespace")).structured_outputs
    assert params is not None
    assert (params.kind, params.source, params.any_whitespace) == (kind, source, True)


def test_a_schema_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"enum": ["é"]}', encoding="utf-8")
    assert changes("--json-schema", f"@{file}")["structured_outputs"] == {"json": '{"enum": ["é"]}'}
    with pytest.raises(ConfigError, match=r"missing\.json"):
        changes("--json-schema", "@missing.json")


@pytest.mark.parametrize(
    "arguments",
    [("--json-schema", "no json"), ("--regex", "a", "--json-object"), ("--choice", ""), ("--any-whitespace",)],
)
def test_bad_constraints_are_refused_before_a_model_is_loaded(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        changes(*arguments)
