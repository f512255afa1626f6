"""From a constraint to a grammar in llguidance's JSON form.

Owns: `grammar_of` and what is refused by kind. Must never know: tokens, masks, which keywords of a schema are enforced.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import regex_to_lark

from octavo.structured_outputs import StructuredOutputsParams
from octavo_llguidance.schema import refuse, usable_schema

_ANY_SPELLING = '%llguidance {"no_forcing": true}\nstart: @constraint'
"""Without `no_forcing`, forced text would be allowed in one tokenisation only."""
_WHITESPACE = r"[ \t\n\r]{1,16}"
_JSON_OPTIONS = {
    "whitespace_flexible": False,
    # without \u, for "\u0061" would be taken for another property than "a"
    "json_allowed_escapes": '"\\bfnrt',
    "lenient": False,
}
_LARK_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*')
_LARK_UNENFORCED = re.compile(r"\b(temperature|max_tokens)\s*=")
_LARK_OPTIONS = re.compile(r"^\s*%llguidance\b(?!\s*\{\s*\}\s*$)", re.MULTILINE)


def grammar_of(params: StructuredOutputsParams) -> str:
    """The grammar. Raises `InvalidRequestError` (field `structured_outputs`) for what would not be enforced."""
    constraint = {"name": "constraint", **_constraint(params)}
    return json.dumps({"grammars": [{"lark_grammar": _ANY_SPELLING}, constraint]})


def _constraint(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.kind == "json":
        return _json(json.loads(params.source), params.any_whitespace)
    if params.kind == "json_object":
        return _json({"type": "object"}, params.any_whitespace)
    if params.kind == "regex":
        return {"lark_grammar": f"start: /{_lark_regex(params.source)}/"}
    if params.kind == "choice":
        quoted = (json.dumps(text, ensure_ascii=False) for text in params.choice or ())
        return {"lark_grammar": "start: CHOICE\nCHOICE: " + " | ".join(quoted)}
    return {"lark_grammar": _lark(params.source)}


def _json(schema: Any, any_whitespace: bool) -> dict[str, Any]:
    options: dict[str, Any] = dict(_JSON_OPTIONS)
    if any_whitespace:
        options |= {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}
    return {"json_schema": {**usable_schema(schema), "x-guidance": options}}


def _lark_regex(regex: str) -> str:
    """A regular expression as it stands between slashes in Lark; \\d and \\w as in JSON schemas: of ASCII only."""
    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise refuse("the regex ends with a backslash that escapes nothing")
    return regex_to_lark(regex, "dw")


def _lark(source: str) -> str:
    bare = _LARK_LITERAL.sub('""', source)
    if "::=" in bare:
        raise refuse(
            "llguidance reads grammars in Lark notation (start: …), not EBNF with '::='; "
            "write it in Lark, or choose another backend"
        )
    unenforced = _LARK_UNENFORCED.search(bare)
    if unenforced:
        raise refuse(f"{unenforced[1]} in a grammar is not enforced; set it in the sampling parameters")
    if "<" in bare:
        raise refuse("special tokens in a grammar (<…>) are never allowed; write the text as a string")
    if _LARK_OPTIONS.search(bare):
        raise refuse("%llguidance options in a grammar are not enforced; leave them out")
    return source
