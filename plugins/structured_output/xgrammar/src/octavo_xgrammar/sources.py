"""From what a request asks for to what xgrammar compiles.

Owns: `prepare`, the notation of each kind of constraint. Must never know: processes, matchers, Octavo itself, for the
worker process runs this without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_xgrammar import regexes, spelling
from octavo_xgrammar.regexes import Refused
from octavo_xgrammar.schemas import SchemaReader

_CHAR = r"[^\0-\x1f\"\\\r\n", r"[^\0-\x1f\"\\\ud800-\udfff"
"""What xgrammar writes for a character of a JSON string, and the same without surrogates, which are no UTF-8."""
_ESCAPE_IN_NAME = r' | ("\\" basic_escape basic_string_sub)'
"""In names of additional properties, any escape: with one, a name of the schema could be spelt again."""
_PLAIN_ESCAPE_IN_NAME = r' | ("\\" [\"\\bfnrt] basic_string_sub)'
"""Those that stand for what cannot be spelt otherwise, so for no part of a name without such characters."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|.)", re.S)
_EXACT_REPEATS_BUDGET = 800_000
_REFUSED_TAGS = frozenset({"qwen_xml_parameter"})


@dataclass(frozen=True)
class Notation:
    """How sources are written down."""

    vocab_size: int
    max_whitespace: int
    closed_objects: bool
    json_to_ebnf: Callable[..., str]
    """`json_to_ebnf(schema, **options)`: what xgrammar makes of a schema, as text."""

    @property
    def exact_repeats(self) -> int:
        """Up to how many characters a string is counted with escapes: each costs a mask over the whole vocabulary."""
        return min(spelling.MAX_REPEAT, _EXACT_REPEATS_BUDGET // self.vocab_size)

    def prepare(self, kind: str, source: str, any_whitespace: bool) -> tuple[str, str]:
        """`"grammar"` and EBNF with the rule `root`, or `"structural_tag"` and a tag. Raises `Refused`."""
        if kind == "structural_tag":
            return "structural_tag", json.dumps(self._tag(json.loads(source), any_whitespace))
        if kind == "json":
            return "grammar", self._json(json.loads(source), any_whitespace)
        if kind == "json_object":
            return "grammar", self._json({"type": "object"}, any_whitespace)
        if kind == "regex":
            return "grammar", self._regex(source)
        if kind == "choice":
            node = regexes.trie(json.loads(source))
            return "grammar", "root ::= " + spelling.ebnf(node, in_json=False, exact_repeats=self.exact_repeats)
        if "\0" in source:
            raise Refused("the grammar has a NUL character; write it as \\x00")
        return "grammar", source

    def _regex(self, source: str) -> str:
        node = regexes.whole(regexes.parse(source))
        return "root ::= " + spelling.ebnf(node, in_json=False, exact_repeats=self.exact_repeats)

    def _json(self, schema: Any, any_whitespace: bool) -> str:
        reader = SchemaReader(schema, closed_objects=self.closed_objects, exact_repeats=self.exact_repeats)
        written = json.dumps(reader.read())
        ebnf = self.json_to_ebnf(
            written,
            any_whitespace=any_whitespace,
            separators=(",", ":"),
            strict_mode=False,
            max_whitespace_cnt=self.max_whitespace if any_whitespace else None,
        )
        ebnf = _mended(ebnf, reader.escapes_names)
        for i, (name, rule) in enumerate(reader.rules.items()):
            ebnf = ebnf.replace(f'"\\"{name}\\""', f"octavo_{i}") + f"\noctavo_{i} ::= {rule}\n"
            if name in ebnf:
                raise RuntimeError(f"xgrammar writes constants in an unknown way: {ebnf[:500]}")
        return ebnf

    def _tag(self, part: Any, any_whitespace: bool) -> Any:
        """The tag with its schemas and regular expressions as grammars of our own."""
        if isinstance(part, list):
            return [self._tag(item, any_whitespace) for item in part]
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        if "structures" in part and "triggers" in part:
            part = {**part, "structures": [self._structure(item) for item in part["structures"]]}
            return self._tag(_from_structures(part), any_whitespace)
        if kind in _REFUSED_TAGS or (kind == "json_schema" and part.get("style", "json") != "json"):
            raise Refused(f"structural tags of style {part.get('style', kind)!r} are not enforced in full by xgrammar")
        if kind == "json_schema":
            return {"type": "grammar", "grammar": self._json(part.get("json_schema", True), any_whitespace)}
        if kind == "regex" and isinstance(part.get("pattern"), str):
            return {"type": "grammar", "grammar": self._regex(part["pattern"])}
        return {name: self._tag(value, any_whitespace) for name, value in part.items()}

    @staticmethod
    def _structure(item: Any) -> Any:
        if not isinstance(item, dict) or not {"begin", "end"} <= item.keys():
            raise Refused("each of structures in structural_tag needs begin, schema and end")
        schema = item.get("schema", True)
        content = {"type": "json_schema", "json_schema": json.loads(schema) if isinstance(schema, str) else schema}
        return {"begin": item["begin"], "content": content, "end": item["end"]}


def _from_structures(part: dict[str, Any]) -> dict[str, Any]:
    """The older form, `structures` and `triggers`, in the newer one."""
    tags = {"type": "triggered_tags", "triggers": part["triggers"], "tags": part["structures"]}
    return {"type": "structural_tag", "format": tags}


def _mended(ebnf: str, escapes_names: bool) -> str:
    """What xgrammar writes, put right where it lets through what is not valid, or cannot read its own writing."""
    names = re.compile(r"^\S+_addl_key_\d+ ::= .*$", re.M)
    escape = "" if escapes_names else _PLAIN_ESCAPE_IN_NAME
    ebnf = names.sub(lambda rule: rule[0].replace(_ESCAPE_IN_NAME, escape), ebnf.replace(*_CHAR))
    # a hexadecimal digit behind \xe9 would be read as part of it
    return _ESCAPE.sub(lambda found: f"\\u00{found[1]}" if found[1] else found[0], ebnf)


_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
_WARNING = re.compile(r"^\[[\d:]+\] \S+:\d+: Warning: (.*)$", re.M)


def message_of(error: BaseException) -> str:
    """What an error of xgrammar says, without where its code says it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _PLACE.sub("", lines[-1])


def warning_in(log: str) -> str | None:
    """The first warning in what xgrammar logged: what it warns of it does not enforce."""
    found = _WARNING.search(log)
    return found[1] if found else None
