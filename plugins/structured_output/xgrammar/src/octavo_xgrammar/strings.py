"""Strings of a JSON schema as EBNF: pattern, format, length.

Owns: which formats there are and what they mean. Must never know: other types, xgrammar's Python API.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo_xgrammar import regexes, spelling
from octavo_xgrammar.meeting import Unsatisfiable, not_enforced
from octavo_xgrammar.regexes import Refused

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PATTERNS: Mapping[str, str] = {
    "date": _DATE,  # RFC 3339, with the days that each month has
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",  # RFC 2673
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",  # RFC 4122
}
_OF_XGRAMMAR = frozenset(
    {"duration", "email", "hostname", "ipv6", "uri", "uri-reference", "uri-template", "json-pointer"}
    | {"relative-json-pointer"}
)
_MEANINGLESS = frozenset({"binary", "password"})
"""Formats that say how a text is shown or sent, and nothing of what it is."""


def string(simple: Mapping[str, Any], path: str, exact_repeats: int) -> str | dict[str, Any]:
    """The EBNF of a string, or a schema that xgrammar enforces as it is.

    Raises `Refused` for what it cannot enforce, `Unsatisfiable` if there is no such string.
    """
    least, most = simple.get("minLength", 0), simple.get("maxLength", math.inf)
    if least > most:
        raise Unsatisfiable(f"minLength is above maxLength at {path}")
    bounded = bool(least) or most != math.inf
    form = simple.get("format")
    if form in _MEANINGLESS:
        form = None
    if form is not None and "pattern" in simple:
        raise not_enforced("format", path, "next to pattern")
    if form in _OF_XGRAMMAR:
        if bounded:
            raise not_enforced("minLength or maxLength", path, f"next to format {form}")
        return {"type": "string", "format": form}
    if form is not None and form not in _PATTERNS:
        known = ", ".join(sorted(_OF_XGRAMMAR | _PATTERNS.keys()))
        raise not_enforced("format", path, f"{form!r} (others are: {known})")
    if form is None and "pattern" not in simple:
        if not bounded:
            return {"type": "string"}
        return spelling.string_of_len(least, None if most == math.inf else int(most), exact_repeats)
    try:
        node = regexes.anywhere(regexes.parse(simple["pattern"] if form is None else f"^{_PATTERNS[form]}$"))
        if bounded:
            node = _with_len(node, least, most, path)
        return spelling.ebnf(node, in_json=True, exact_repeats=exact_repeats)
    except Refused as error:
        raise Refused(f"pattern at {path}: {error}") from None


def _with_len(node: regexes.Node, least: int, most: float, path: str) -> regexes.Node:
    """The expression with the lengths put into it, where that is simple."""
    shortest, longest = regexes.text_len(node)
    if least <= shortest and (math.inf if longest is None else longest) <= most:
        return node
    if shortest > most or (longest is not None and longest < least):
        raise Unsatisfiable(f"no string at {path} has both the pattern and the length")
    parts = [item for item in node.items if item != regexes.EMPTY] if isinstance(node, regexes.Cat) else [node]
    node = parts[0] if len(parts) == 1 else node
    if isinstance(node, regexes.Repeat) and isinstance(node.item, regexes.Chars):
        high = min(most, math.inf if node.most is None else node.most)
        return regexes.Repeat(node.item, max(least, node.least), None if high == math.inf else int(high))
    raise not_enforced("minLength or maxLength", path, "next to a pattern other than one repeated set of characters")
