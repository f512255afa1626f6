"""Integers and numbers of a JSON schema: bounds, multiples, formats.

Owns: those. Must never know: other types, xgrammar's Python API.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo_xgrammar import regexes, spelling
from octavo_xgrammar.meeting import Unsatisfiable, not_enforced

_INT64 = (-(2**63), 2**63 - 1)
_INT_FORMATS = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


def integer(simple: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The schema of an integer that xgrammar enforces. Raises as `strings.string` does."""
    low, high = _INT_FORMATS.get(simple.get("format", ""), (-math.inf, math.inf))
    for keyword, value in simple.items():
        if keyword == "minimum":
            low = max(low, math.ceil(value))
        elif keyword == "exclusiveMinimum":
            low = max(low, math.floor(value) + 1)
        elif keyword == "maximum":
            high = min(high, math.floor(value))
        elif keyword == "exclusiveMaximum":
            high = min(high, math.ceil(value) - 1)
    if low > high or low > _INT64[1] or high < _INT64[0]:
        raise Unsatisfiable(f"no integer of 64 bits is within the bounds at {path}")
    written: dict[str, Any] = {"type": "integer"}
    if low != -math.inf:
        written["minimum"] = max(int(low), _INT64[0])
    if high != math.inf:
        written["maximum"] = min(int(high), _INT64[1])
    multiple = simple.get("multipleOf", 1)
    if (1 / multiple).is_integer():
        return written
    if multiple != int(multiple) or multiple > 1024:
        raise not_enforced("multipleOf", path, "other than a whole number up to 1024")
    if low == -math.inf and high == math.inf:
        return {"type": "integer", "multipleOf": int(multiple)}
    if high - low > 1000 * multiple:
        raise not_enforced("multipleOf", path, "next to bounds that leave more than 1000 values")
    first = math.ceil(low / multiple) * int(multiple)
    if first > high:
        raise Unsatisfiable(f"no multiple of {multiple} is within the bounds at {path}")
    return {"enum": list(range(first, int(high) + 1, int(multiple)))}


def number(simple: Mapping[str, Any], path: str) -> str | dict[str, Any]:
    """The schema of a number that xgrammar enforces, or its EBNF. Raises as `strings.string` does."""
    if simple.get("format") in _INT_FORMATS:
        return integer(simple, path)
    bounds = {k: v for k, v in simple.items() if k.endswith("imum")}
    multiple = simple.get("multipleOf")
    if multiple is not None:
        if multiple == int(multiple):
            return integer(simple, path)
        places = round(-math.log10(multiple))
        if bounds or not math.isclose(10.0**-places, multiple, rel_tol=1e-12):
            raise not_enforced("multipleOf", path, "other than whole numbers, and 0.1, 0.01, … without bounds,")
        literal = regexes.parse(rf"-?(?:0|[1-9][0-9]*)(?:\.[0-9]{{1,{places}}})?")
        return spelling.ebnf(literal, in_json=False, exact_repeats=0)
    low = max((bounds[k] for k in ("minimum", "exclusiveMinimum") if k in bounds), default=-math.inf)
    high = min((bounds[k] for k in ("maximum", "exclusiveMaximum") if k in bounds), default=math.inf)
    if low > high or (
        low == high and (bounds.get("exclusiveMinimum") == low or bounds.get("exclusiveMaximum") == high)
    ):
        raise Unsatisfiable(f"no number is within the bounds at {path}")
    if low < high < low + 1e-5:
        raise not_enforced("maximum", path, "so near to the minimum that more than six decimals would be needed")
    return {"type": "number", **bounds}
