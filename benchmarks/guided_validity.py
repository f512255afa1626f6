"""Whether guided output is valid: every schema, with and without drafts, greedy and seeded.

Owns: what counts as valid. Must never know: grammars.

`jsonschema` judges, with formats checked by `FORMATS`. An output that was cut by its length is counted apart: it has
not ended, so it cannot be whole.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from measuring import print_table
from workloads import NamedSchema

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.request import CompletionOutput, FinishReason

TEMPERATURES = (0.0, 0.7)
FORMATS = FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_URI = r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_DAYTIME = r"T(\d+H)?(\d+M)?(\d+S)?"


@FORMATS.checks("time")
def is_time(value: object) -> bool:
    """RFC 3339 full-time."""
    return not isinstance(value, str) or bool(re.fullmatch(_TIME, value, re.ASCII | re.IGNORECASE))


@FORMATS.checks("date-time", raises=ValueError)
def is_date_time(value: object) -> bool:
    """RFC 3339 date-time: a day that the calendar has, and a time."""
    if not isinstance(value, str):
        return True
    datetime.strptime(value[:10], "%Y-%m-%d")
    return value[10:11] in ("T", "t") and is_time(value[11:])


@FORMATS.checks("uri")
def is_uri(value: object) -> bool:
    """RFC 3986: a scheme, and only characters that may be in a URI."""
    return not isinstance(value, str) or bool(re.fullmatch(_URI, value))


@FORMATS.checks("hostname")
def is_hostname(value: object) -> bool:
    """RFC 1123."""
    return not isinstance(value, str) or (
        len(value) <= 253 and bool(re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", value, re.ASCII))
    )


@FORMATS.checks("duration")
def is_duration(value: object) -> bool:
    """ISO 8601 as RFC 3339 has it: weeks, or days and times with at least one part."""
    days = rf"P(\d+Y)?(\d+M)?(\d+D)?({_DAYTIME})?|P\d+W"
    return not isinstance(value, str) or bool(re.fullmatch(days, value, re.ASCII) and value[-1] not in "PT")


@dataclass(slots=True)
class Count:
    """Outputs of one combination of backend, drafter and temperature."""

    valid: int = 0
    cut: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.valid + self.cut + len(self.wrong) + len(self.errors)

    def add(self, schema: NamedSchema, completion: CompletionOutput) -> None:
        if completion.finish_reason is FinishReason.ERROR:
            self.errors.append(f"{schema.name}: {completion.error}")
            return
        fault = fault_of(completion.text, schema.schema)
        if fault is None:
            self.valid += 1
        elif completion.finish_reason is FinishReason.LENGTH:
            self.cut += 1
        else:
            self.wrong.append(f"{schema.name}: {fault} in {completion.text[:300]!r}")


def fault_of(text: str, schema: dict[str, Any]) -> str | None:
    """Why `text` is not a JSON value that the schema allows; None if it is."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except ValueError as error:
        return f"not JSON ({error})"
    errors = Draft202012Validator(schema, format_checker=FORMATS).iter_errors(value)
    first = next(iter(errors), None)
    return None if first is None else f"{first.validator} of {first.json_path}: {first.message[:120]}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def messages_for(schema: NamedSchema) -> list[dict[str, str]]:
    """A question whose natural answer has about the shape of the schema."""
    words = schema.name.replace("_", " ")
    return [{"role": "user", "content": f"Give me one realistic example of this as JSON: {words}."}]


def guided_params(schema: NamedSchema, backend: str, temperature: float, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        seed=7,
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputsParams(json=schema.schema, backend=backend),
    )


def run(schemas: Sequence[NamedSchema], options: argparse.Namespace) -> dict[str, Any]:
    """One engine for each drafter; the outputs of all must be the same tokens."""
    messages = [messages_for(schema) for schema in schemas]
    counts: dict[tuple[str, float, str], Count] = {}
    plain: dict[tuple[str, float], list[tuple[int, ...]]] = {}
    differ: dict[tuple[str, float, str], list[str]] = {}
    for drafter in options.drafters:
        llm = LLM(drafter=drafter, memory=options.memory, max_num_seqs=16)
        for backend in options.backends:
            for temperature in TEMPERATURES:
                params = [guided_params(s, backend, temperature, options.max_tokens) for s in schemas]
                outputs = [o.outputs[0] for o in llm.chat(messages, params)]
                key = (backend, temperature, drafter)
                counts[key] = Count()
                for schema, output in zip(schemas, outputs, strict=True):
                    counts[key].add(schema, output)
                tokens = [o.token_ids for o in outputs]
                expected = plain.setdefault((backend, temperature), tokens)
                pairs = zip(schemas, expected, tokens, strict=True)
                differ[key] = [schema.name for schema, a, b in pairs if a != b]
        llm.shutdown()
    rows = [
        [*key[:1], f"{key[1]:g}", key[2], c.total, c.valid, c.cut, len(c.wrong), len(c.errors), len(differ[key])]
        for key, c in counts.items()
    ]
    print_table(
        ["backend", "temperature", "drafter", "schemas", "valid", "cut", "wrong", "errors", "differ from plain"], rows
    )
    for (backend, temperature, drafter), count in counts.items():
        for line in (*count.wrong, *count.errors):
            print(f"{backend}, temperature {temperature:g}, drafter {drafter}: {line}")
    return {
        f"{backend}, {temperature:g}, {drafter}": {
            "schemas": count.total,
            "valid": count.valid,
            "cut": count.cut,
            "wrong": count.wrong,
            "errors": count.errors,
            "differ": differ[backend, temperature, drafter],
        }
        for (backend, temperature, drafter), count in counts.items()
    }
