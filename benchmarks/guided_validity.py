"""Whether guided output is valid: every schema, with and without drafts, greedy and seeded.

Owns: what counts as valid. Must never know: grammars.

`jsonschema` judges, with formats checked by `FORMATS`. An output that was cut by its length is counted apart: it has
not ended, so it cannot be whole.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
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
    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Schemas by what the engine said of them."""
    differ: list[str] = field(default_factory=list)
    """Schemas whose output has other tokens than with the first drafter; where both have an output."""

    @property
    def num_errors(self) -> int:
        return sum(map(len, self.errors.values()))

    @property
    def total(self) -> int:
        return self.valid + self.cut + len(self.wrong) + self.num_errors

    def lines(self) -> list[str]:
        refused = [f"{', '.join(names)}: {message}" for message, names in self.errors.items()]
        return [*self.wrong, *refused, *(["other tokens than plain: " + ", ".join(self.differ)] if self.differ else [])]

    def summary(self) -> dict[str, Any]:
        return {
            "schemas": self.total,
            "valid": self.valid,
            "cut": self.cut,
            "wrong": self.wrong,
            "errors": self.errors,
            "differ": self.differ,
        }

    def add(self, schema: NamedSchema, completion: CompletionOutput) -> None:
        if completion.finish_reason is FinishReason.ERROR:
            self.errors[str(completion.error)].append(schema.name)
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
    counts: dict[tuple[str, str, str], Count] = {}
    plain: dict[tuple[str, float], list[CompletionOutput]] = {}
    for drafter in options.drafters:
        llm = LLM(drafter=drafter, memory=options.memory, max_num_seqs=16)
        for backend in options.backends:
            for temperature in TEMPERATURES:
                params = [guided_params(s, backend, temperature, options.max_tokens) for s in schemas]
                outputs = [output.outputs[0] for output in llm.chat(messages, params)]
                count = counts[backend, f"{temperature:g}", drafter] = Count()
                expected = plain.setdefault((backend, temperature), outputs)
                for schema, output, other in zip(schemas, outputs, expected, strict=True):
                    count.add(schema, output)
                    if output.error is None and other.error is None and output.token_ids != other.token_ids:
                        count.differ.append(schema.name)
        llm.shutdown()
    header = ["backend", "temperature", "drafter", "schemas", "valid", "cut", "wrong", "errors", "differ"]
    rows = [[*key, c.total, c.valid, c.cut, len(c.wrong), c.num_errors, len(c.differ)] for key, c in counts.items()]
    print_table(header, rows)
    for key, count in counts.items():
        for line in count.lines():
            print(f"{', '.join(key)}: {line}")
    return {", ".join(key): count.summary() for key, count in counts.items()}
