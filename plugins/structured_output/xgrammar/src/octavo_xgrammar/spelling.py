"""Writes expressions down as xgrammar's EBNF, as plain text or as JSON strings.

Owns: escapes, which repetitions are fast. Must never know: schemas, xgrammar's Python API.

xgrammar's own reading of expressions is not used: it drops anchors in the middle, lets `.` match line breaks, and a
`pattern` of a JSON schema there matches the escaped text instead of the string.
"""

from __future__ import annotations

import json

from octavo_xgrammar.regexes import (
    EMPTY,
    Alt,
    Anchor,
    Cat,
    Chars,
    Node,
    Refused,
    Repeat,
    chars,
    chars_of,
    complement,
    is_single,
    meet,
)

MAX_REPEAT = 128
"""xgrammar unrolls repetitions up to this number; beyond it counts, and then a mask takes a tenth of a second."""
UNESCAPED = complement(chars([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
"""Characters that stand for themselves in a JSON string."""


def ebnf(node: Node, *, in_json: bool, exact_repeats: int) -> str:
    """The expression as an EBNF element; with `in_json` as a JSON string with its quotes.

    Where characters of a repeated set may have to be escaped, more than `exact_repeats` repetitions leave those out.
    """
    items = [item for item in (node.items if isinstance(node, Cat) else (node,)) if item != EMPTY]
    ends = [*items[1:], chars_of('"') if in_json else EMPTY]
    counted = [
        _ebnf_element(item, in_json) if _is_ambiguous(item) else _counted(item, end, in_json, exact_repeats)
        for item, end in zip(items, ends, strict=True)
    ]
    if not any(counted):
        quote = '"' * in_json
        return _regex_element(quote + "".join(_regex(item, in_json) for item in items) + quote)
    quotes = ['"\\""'] * in_json
    written = [rule or _plain_element(item, in_json) for rule, item in zip(counted, items, strict=True)]
    return " ".join(part for part in (*quotes, *written, *quotes) if part)


def _counted(node: Node, end: Node, in_json: bool, exact_repeats: int) -> str:
    """The EBNF of a repeated set of characters, if that is better than an expression; else nothing.

    xgrammar counts at no cost what ends with one certain character that is not in the set. Otherwise, and in
    expressions, each repetition costs a mask over the vocabulary; beyond `MAX_REPEAT` expressions have slow masks.
    """
    if not isinstance(node, Repeat) or not isinstance(node.item, Chars):
        return ""
    plain = meet(node.item, UNESCAPED) if in_json else node.item
    times = node.least if node.most is None else node.most
    is_free = isinstance(end, Chars) and is_single(end) and not meet(end, plain).ranges
    few = (3 if is_free else MAX_REPEAT) if plain == node.item else exact_repeats
    if not plain.ranges or times <= few:
        return ""
    return f"{_ebnf_set(plain)}{{{node.least},{'' if node.most is None else node.most}}}"


def _plain_element(node: Node, in_json: bool) -> str:
    """Beside something that is counted, expressions are slow and EBNF is not, where it can say the same."""
    repeat = node if isinstance(node, Repeat) else Repeat(node, 1, 1)
    if isinstance(repeat.item, Chars) and (not in_json or meet(repeat.item, UNESCAPED) == repeat.item):
        bounds = {(1, 1): "", (0, None): "*", (1, None): "+", (0, 1): "?"}.get((repeat.least, repeat.most))
        most = "" if repeat.most is None else repeat.most
        character = f'"{_ebnf_char(repeat.item.ranges[0][0])}"' if is_single(repeat.item) else _ebnf_set(repeat.item)
        return character + (bounds if bounds is not None else f"{{{repeat.least},{most}}}")
    regex = _regex(node, in_json)
    return _regex_element(regex) if regex else ""


def string_of_len(least: int, most: int | None, exact_repeats: int) -> str:
    """The EBNF of a JSON string of so many characters. All escapes are allowed up to `exact_repeats` characters."""
    escape = r'\\(?:["\\/bfnrt]|u(?:[0-9A-Ca-cE-Fe-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}))'
    char = f"(?:{_regex_set(UNESCAPED)}|{escape})"
    if (least if most is None else most) <= exact_repeats:
        return _regex_element(f'"{char}{{{least},}}"' if most is None else f'"{char}{{{least},{most}}}"')
    if most is None:
        return f'"\\"" {_ebnf_set(UNESCAPED)}{{{least},{least}}} ' + _regex_element(char + '*"')
    return f'"\\"" {_ebnf_set(UNESCAPED)}{{{least},{most}}} "\\""'


def _regex_element(regex: str) -> str:
    return f"Regex({json.dumps(regex)})"


def key_pattern(node: Node) -> str:
    """The expression for the names of properties, which may not need escapes; anchored, as xgrammar reads it."""
    return f"^(?:{_regex(_unescaped(node), False)})$"


def _unescaped(node: Node) -> Node:
    if isinstance(node, Chars):
        kept = meet(node, UNESCAPED)
        if not kept.ranges:
            raise Refused("a name of a property that needs escapes cannot be enforced")
        return kept
    if isinstance(node, Repeat):
        return Repeat(_unescaped(node.item), node.least, node.most)
    return node if isinstance(node, Anchor) else type(node)(tuple(_unescaped(item) for item in node.items))


def _regex(node: Node, in_json: bool) -> str:
    if isinstance(node, Chars):
        return _json_set(node) if in_json else _regex_set(node)
    if isinstance(node, Repeat):
        _check_bounds(node)
        if node.most == 0:
            return ""
        item = _regex(node.item, in_json)
        if item and (node.least, node.most) == (0, 1):
            return f"(?:|{item})"  # what xgrammar makes of (…)? can also be entered in the middle
        return f"(?:{item}){_bounds(node)}" if item else ""
    assert not isinstance(node, Anchor)
    if isinstance(node, Alt):
        return "(?:" + "|".join(_regex(item, in_json) for item in node.items) + ")"
    return "".join(_regex(item, in_json) for item in node.items)


def _check_bounds(node: Repeat) -> None:
    if max(node.least, node.most or 0) > MAX_REPEAT:
        raise Refused(
            f"a repetition of more than {MAX_REPEAT} times makes xgrammar slow, except of a single set of characters "
            "outside of groups; allow fewer"
        )


def _bounds(node: Repeat) -> str:
    named = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    return named or f"{{{node.least},{'' if node.most is None else node.most}}}"


def _ebnf_element(node: Node, in_json: bool) -> str:
    """The expression as EBNF all through: right for each expression, and slow for repetitions of groups."""
    if isinstance(node, Chars):
        plain, escaped = meet(node, UNESCAPED) if in_json else node, _escapes(node) if in_json else []
        ways = [*([_ebnf_set(plain)] if plain.ranges else []), *map(json.dumps, escaped)]
        return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"
    if isinstance(node, Repeat):
        _check_bounds(node)
        return f"({_ebnf_element(node.item, in_json)}){_bounds(node)}" if node.most != 0 else '""'
    assert not isinstance(node, Anchor)
    written = [_ebnf_element(item, in_json) for item in node.items] or ['""']
    return f"({' | '.join(written)})" if isinstance(node, Alt) else " ".join(written)


def _is_ambiguous(node: Node) -> bool:
    """Whether the expression has alternatives that begin alike: xgrammar's own reading may then go from one to another.

    `a|aa?`, for one, lets any number of them through (xgrammar 0.2.9).
    """
    if isinstance(node, Alt):
        starts = [_start(item)[0] for item in node.items]
        if any(meet(a, b).ranges for i, a in enumerate(starts) for b in starts[:i]):
            return True
    if isinstance(node, Repeat):
        return _is_ambiguous(node.item)
    return isinstance(node, Alt | Cat) and any(map(_is_ambiguous, node.items))


def _start(node: Node) -> tuple[Chars, bool]:
    """The characters that the expression can begin with, and whether it can be empty."""
    if isinstance(node, Chars):
        return node, False
    if isinstance(node, Anchor):
        return chars([]), True
    if isinstance(node, Repeat):
        start, can_be_empty = _start(node.item)
        return start if node.most != 0 else chars([]), can_be_empty or node.least == 0
    starts = []
    for item in node.items:
        starts.append(_start(item))
        if isinstance(node, Cat) and not starts[-1][1]:
            break
    ranges = [pair for start, _ in starts for pair in start.ranges]
    can_be_empty = any(empty for _, empty in starts) if isinstance(node, Alt) else all(empty for _, empty in starts)
    return chars(ranges), can_be_empty


def _regex_set(members: Chars) -> str:
    """One set for each length in UTF-8: ranges across lengths let bytes through that are no characters."""
    if is_single(members):
        return _regex_char(members.ranges[0][0])
    sets = []
    for length in (chars([(0, 0x7FF)]), chars([(0x800, 0xFFFF)]), chars([(0x10000, 0x10FFFF)])):
        ranges = meet(members, length).ranges
        spelt = [_regex_char(a) if a == b else f"{_regex_char(a)}-{_regex_char(b)}" for a, b in ranges]
        sets += [f"[{''.join(spelt)}]"] if spelt else []
    return sets[0] if len(sets) == 1 else f"(?:{'|'.join(sets)})"


def _regex_char(code: int) -> str:
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in " _\"@#%&,:;<>=!~`'"):
        return character
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{{{code:X}}}"


def _ebnf_set(members: Chars) -> str:
    """Always as what is not in it: xgrammar counts repetitions of `[^…]` at once, and of `[…]` one after the other."""

    absent = chars([*complement(members).ranges, (0xD800, 0xDFFF)]).ranges  # surrogates would be let through
    spelt = [_ebnf_char(a) if a == b else f"{_ebnf_char(a)}-{_ebnf_char(b)}" for a, b in absent]
    return f"[^{''.join(spelt)}]"


def _ebnf_char(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_set(members: Chars) -> str:
    """One of `members` as a JSON string spells it: as itself, or escaped in the usual way."""
    ways = []
    plain = meet(members, UNESCAPED)
    if plain.ranges:
        ways.append(_regex_set(plain))
    spelt = _escapes(members)
    short = "".join(_regex_char(ord(text[1])) for text in spelt if len(text) == 2)
    if short:
        ways.append(f"\\x5c[{short}]")
    for digit in "01":
        last = "".join(text[5] for text in spelt if len(text) == 6 and text[4] == digit)
        if last:
            ways.append(f"\\x5cu00{digit}[{last}]")
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _escapes(members: Chars) -> list[str]:
    """How a JSON string spells those of `members` that have to be escaped."""
    escaped = [c for c in (*range(0x20), 0x22, 0x5C) if any(low <= c <= high for low, high in members.ranges)]
    return [json.dumps(chr(c))[1:-1] for c in escaped]
