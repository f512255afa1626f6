"""What form the output of one request must have. A frozen record that refuses what no grammar could mean.

Owns: `StructuredOutputsParams` and its normal form. Must never know: grammar backends, tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError, one_line

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The kinds of constraint; each is a field of `StructuredOutputsParams`, and a request has exactly one."""
MAX_CHOICES = 10_000
MAX_DEPTH = 100
"""Deepest nesting of a schema or a structural tag: grammars recurse over it."""
MAX_PARTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The constraint of one request. Names follow vLLM's.

    After construction `json` and `structural_tag` hold JSON text in one spelling, whatever was passed. Raises
    `InvalidRequestError` (field `structured_outputs`) if it is not exactly one constraint, or is malformed.
    """

    json: Any = None
    """A JSON schema: as text, as a mapping, as a bool, or as a pydantic model class. `Any`, for
    msgspec, which carries requests to other processes, has no type for the last."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """The whole output matches this regular expression."""
    choice: Sequence[str] | None = None
    """The output is one of these texts."""
    grammar: str | None = None
    """A context-free grammar in EBNF, in the notation of the backend."""
    structural_tag: str | Mapping[str, Any] | None = None
    """Free text in which tags open constrained parts, as JSON text or a mapping."""
    any_whitespace: bool = False
    """Let JSON have whitespace between its tokens; otherwise it is compact."""
    backend: str | None = None
    """Which grammar backend enforces it; None: the configured one."""

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise _wrong(f"give exactly one of {', '.join(KINDS)}; got {' and '.join(given) or 'none'}")
        for name in ("json_object", "any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(f"{name} must be true or false, got {type(getattr(self, name)).__name__}")
        for name in ("regex", "grammar", "backend"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise _wrong(f"{name} must be a text that is not empty")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if given[0] == "json":
            object.__setattr__(self, "json", _json_text("json", _schema_of(self.json), (Mapping, bool)))
        if self.structural_tag is not None:
            object.__setattr__(self, "structural_tag", _json_text("structural_tag", self.structural_tag, (Mapping,)))
        try:
            self.source.encode()
        except UnicodeEncodeError as error:
            raise _wrong(f"{given[0]} is not valid Unicode text: {error}") from None

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return self._given()[0]

    @property
    def source(self) -> str:
        """The constraint as text; with `kind` and `any_whitespace` it says what is to be compiled."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _given(self) -> list[str]:
        """Kinds that differ from their defaults. False is a schema too, the one that nothing satisfies."""
        return [kind for kind in KINDS if getattr(self, kind) is not (False if kind == "json_object" else None)]


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError("structured_outputs", message)


def _choices(given: Any) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise _wrong("choice must be a list of texts")
    if not 0 < len(given) <= MAX_CHOICES:
        raise _wrong(f"choice must have 1 to {MAX_CHOICES} entries, got {len(given)}")
    if any(not isinstance(text, str) or not text for text in given):
        raise _wrong("every choice must be a text that is not empty")
    return tuple(dict.fromkeys(given))


def _schema_of(given: Any) -> Any:
    """The schema of a pydantic model class, or what was given."""
    describe = getattr(given, "model_json_schema", None)
    if not callable(describe):
        return given
    try:
        return describe()
    except Exception as error:  # pydantic's own errors, which this package does not know
        raise _wrong(f"json: {given!r} has no JSON schema: {one_line(error)}") from error


def _json_text(name: str, given: Any, kinds: tuple[type, ...]) -> str:
    """`given` as compact JSON text: one grammar, one spelling. Keys keep their order, for output follows it."""
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except RecursionError:
        raise _wrong(f"{name} is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise _wrong(f"{name} is not JSON: {error}") from None
    if not isinstance(value, kinds):
        raise _wrong(f"{name} must be a JSON object, got {type(value).__name__}")
    if not isinstance(value, bool):
        _check_size(name, value)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise _wrong(f"{name} cannot be written as JSON: {error}") from None
    return text


def _check_size(name: str, value: Any) -> None:
    layer, depth, size = [value], 0, 1
    while layer:
        depth += 1
        if depth > MAX_DEPTH:
            raise _wrong(f"{name} is nested more than {MAX_DEPTH} deep")
        parents = (item.values() if isinstance(item, Mapping) else item for item in layer)
        layer = [child for children in parents for child in children if isinstance(child, Mapping | list | tuple)]
        size += len(layer)
        if size > MAX_PARTS:
            raise _wrong(f"{name} has more than {MAX_PARTS} objects and lists")
