"""Regular expressions as trees.

Owns: their syntax (ECMA-262 with Python's named groups, `\\A` and `\\Z`), sets of characters, anchors. Must never know:
schemas, how a grammar is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MAX_DEPTH = 200
_LAST = 0x10FFFF


class Refused(Exception):
    """The constraint would not be enforced, or cannot be compiled; the message is for the user."""


@dataclass(frozen=True)
class Chars:
    """One character of a set: ranges of code points, ascending and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Cat:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    at_start: bool


Node = Chars | Cat | Alt | Repeat | Anchor
EMPTY = Cat(())


def chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    """The set of all characters in `ranges`; surrogates are no characters."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Chars(tuple(merged))


def meet(a: Chars, b: Chars) -> Chars:
    return chars((max(x, u), min(y, v)) for x, y in a.ranges for u, v in b.ranges if max(x, u) <= min(y, v))


def complement(a: Chars) -> Chars:
    """All other characters."""
    edges = [-1, *(edge for low, high in a.ranges for edge in (low, high)), _LAST + 1]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return meet(chars((low + 1, high - 1) for low, high in gaps if low + 1 < high), _ANY)


def chars_of(text: str) -> Chars:
    return chars((ord(c), ord(c)) for c in text)


_ANY = Chars(((0, 0xD7FF), (0xE000, _LAST)))
_DIGIT = chars([(0x30, 0x39)])
_WORD = chars([(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0x5F, 0x5F)])
_SPACE = chars_of(" \t\n\r\f\v")
_UNICODE_SPACE = chars([*_SPACE.ranges, (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)])
_UNICODE_SPACE = chars([*_UNICODE_SPACE.ranges, (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)])
_DOT = complement(chars_of("\n\r\u2028\u2029"))
_CLASSES = {
    "d": _DIGIT,
    "D": complement(_DIGIT),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _SPACE,  # standards differ on the rest, so neither \s nor \S has it
    "S": complement(_UNICODE_SPACE),
}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}


def parse(text: str) -> Node:
    """The expression as a tree. Raises `Refused` with what is wrong and where."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def parse(self) -> Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("unmatched )")
        return node

    def _wrong(self, what: str) -> Refused:
        return Refused(f"{what} at position {self._at} of the regular expression {_short(self._text)}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _alternatives(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(f"groups more than {_MAX_DEPTH} deep")
        items = [self._sequence()]
        while self._take("|"):
            items.append(self._sequence())
        self._depth -= 1
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._quantified(self._atom()))
        return items[0] if len(items) == 1 else Cat(tuple(items))

    def _quantified(self, atom: Node) -> Node:
        start = self._at
        bounds = self._bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            self._at = start
            raise self._wrong("an anchor cannot be repeated")
        self._take("?")  # lazy or greedy: the same texts match
        if self._peek() in ("+", "*", "?") or (self._peek() == "{" and self._bounds() is not None):
            raise self._wrong("a repetition of a repetition; put the inner one in (?:…)")
        return Repeat(atom, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for token, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(token):
                return bounds
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (low + high).isascii() or not (low + high).isdigit() or (not low and not comma):
            return None  # a brace that stands for itself
        least, most = int(low or 0), int(high) if high else None if comma else int(low)
        if most is not None and least > most:
            raise self._wrong(f"{{{least},{most}}} repeats from more to fewer")
        self._at = end + 1
        return least, most

    def _atom(self) -> Node:
        character = self._peek()
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == ".":
            return _DOT
        if character in "^$":
            return Anchor(character == "^")
        if character in "*+?":
            self._at -= 1
            raise self._wrong("nothing to repeat")
        if character == "\\":
            return self._escape()
        return self._character(ord(character))

    def _character(self, code: int) -> Chars:
        if 0xD800 <= code <= 0xDFFF:
            raise self._wrong("half of a surrogate pair")
        return Chars(((code, code),))

    def _group(self) -> Node:
        if self._take("?"):
            for token, name in (("=", "lookahead"), ("!", "lookahead"), ("<=", "lookbehind"), ("<!", "lookbehind")):
                if self._take(token):
                    raise self._wrong(f"a {name} cannot be enforced; it stands")
            named = self._take("P<") or self._take("<")
            if named:
                self._at = self._text.find(">", self._at) + 1 or len(self._text)
            elif not self._take(":"):
                raise self._wrong(f"(?{self._peek()} cannot be enforced; flags and conditions stand")
        node = self._alternatives()
        if not self._take(")"):
            raise self._wrong("a group is not closed")
        return node

    def _escape(self, in_set: bool = False) -> Node:
        character = self._peek()
        self._at += 1
        if character in _CLASSES and character:
            return _CLASSES[character]
        if character == "x" or character == "u":
            return self._character(self._hex(character))
        if character == "c" and self._peek().isascii() and self._peek().isalpha():
            self._at += 1
            return self._character(ord(self._text[self._at - 1]) % 32)
        if in_set and character == "b":
            return self._character(8)
        if character in "AZz" and character and not in_set:
            return Anchor(character == "A")
        if character in _CONTROLS and not self._peek().isdigit():
            return self._character(_CONTROLS[character])
        if not character:
            raise self._wrong("a backslash ends it; it stands")
        if character.isascii() and character.isalnum():
            kinds = {
                "b": "a word boundary",
                "B": "a word boundary",
                "p": "a Unicode property",
                "P": "a Unicode property",
            }
            what = "a back-reference" if character.isdigit() or character == "k" else kinds.get(character)
            raise self._wrong(f"{what or 'an unknown escape'} (\\{character}) cannot be enforced; it stands")
        return self._character(ord(character))

    def _hex(self, kind: str) -> int:
        if kind == "u" and self._take("{"):
            end = self._text.find("}", self._at)
            digits, self._at = self._text[self._at : max(end, self._at)], end + 1 or len(self._text)
        else:
            width = 2 if kind == "x" else 4
            digits, self._at = self._text[self._at : self._at + width], self._at + width
            digits = digits if len(digits) == width else ""
        try:
            code = int(digits, 16)
        except ValueError:
            raise self._wrong(f"\\{kind} needs hexadecimal digits; it ends") from None
        if 0xD800 <= code <= 0xDBFF and self._take("\\u"):
            return 0x10000 + ((code - 0xD800) << 10) + (self._hex("u") - 0xDC00)
        if code > _LAST:
            raise self._wrong("a code point beyond Unicode")
        return code

    def _set(self) -> Node:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._peek():
                raise self._wrong("a set [ is not closed")
            low = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", "") and is_single(low):
                self._at += 1
                high = self._member()
                if not is_single(high):  # [a-\d] is three members
                    ranges += [*low.ranges, (0x2D, 0x2D), *high.ranges]
                    continue
                if low.ranges[0][0] > high.ranges[0][0]:
                    raise self._wrong("a range from higher to lower")
                ranges.append((low.ranges[0][0], high.ranges[0][0]))
            else:
                ranges += low.ranges
        members = meet(chars(ranges), _ANY)
        members = complement(members) if negated else members
        if not members.ranges:
            raise self._wrong("a set that no character is in")
        return members

    def _member(self) -> Chars:
        if self._take("\\"):
            member = self._escape(in_set=True)
            assert isinstance(member, Chars)
            return member
        self._at += 1
        return self._character(ord(self._text[self._at - 1]))


def is_single(members: Chars) -> bool:
    return len(members.ranges) == 1 and members.ranges[0][0] == members.ranges[0][1]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")


def whole(node: Node) -> Node:
    """What matches a whole text: anchors at its ends go, as they say nothing more."""
    return _without_anchors(_lead(_trail(node, EMPTY), EMPTY))


def anywhere(node: Node) -> Node:
    """What matches a text that has a match somewhere in it, as JSON Schema's `pattern` does."""
    rest = Repeat(_ANY, 0, None)
    return _without_anchors(_lead(_trail(node, rest), rest))


def _lead(node: Node, rest: Node) -> Node:
    """Put `rest` before every way to begin that is not anchored."""
    if isinstance(node, Anchor) and node.at_start:
        return EMPTY
    if isinstance(node, Alt) and _has_anchor(node, True):
        return Alt(tuple(_lead(item, rest) for item in node.items))
    if isinstance(node, Cat) and node.items and _has_anchor(node.items[0], True):
        first = _lead(node.items[0], rest)
        return Cat((first, *_more_anchors(node.items[1:], True)))
    return node if rest == EMPTY else Cat((rest, *(node.items if isinstance(node, Cat) else (node,))))


def _trail(node: Node, rest: Node) -> Node:
    """Put `rest` behind every way to end that is not anchored."""
    if isinstance(node, Anchor) and not node.at_start:
        return EMPTY
    if isinstance(node, Alt) and _has_anchor(node, False):
        return Alt(tuple(_trail(item, rest) for item in node.items))
    if isinstance(node, Cat) and node.items and _has_anchor(node.items[-1], False):
        last = _trail(node.items[-1], rest)
        return Cat((*_more_anchors(node.items[:-1], False), last))
    return node if rest == EMPTY else Cat((*(node.items if isinstance(node, Cat) else (node,)), rest))


def _more_anchors(items: tuple[Node, ...], at_start: bool) -> tuple[Node, ...]:
    """`^^` and `$$` are one anchor."""
    end = 0 if at_start else -1
    while items and items[end] == Anchor(at_start):
        items = items[1:] if at_start else items[:-1]
    return items


def _has_anchor(node: Node, at_start: bool) -> bool:
    if isinstance(node, Anchor):
        return node.at_start == at_start
    return isinstance(node, Cat | Alt) and any(_has_anchor(item, at_start) for item in node.items)


def _without_anchors(node: Node) -> Node:
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, Anchor):
            raise Refused(
                "an anchor (^ or $) in the middle of a regular expression cannot be enforced; move or remove it"
            )
        stack += item.items if isinstance(item, Cat | Alt) else [item.item] if isinstance(item, Repeat) else []
    return node


def text_len(node: Node) -> tuple[int, int | None]:
    """Fewest and most characters of a match; None: no bound."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = text_len(node.item)
        return low * node.least, 0 if high == 0 else None if high is None or node.most is None else high * node.most
    if isinstance(node, Anchor):
        return 0, 0
    lens = [text_len(item) for item in node.items]
    highs = [high for _, high in lens]
    total = min if isinstance(node, Alt) else sum
    most = (
        None if None in highs else (max if isinstance(node, Alt) else sum)(high for high in highs if high is not None)
    )
    return total(low for low, _ in lens), most


def trie(texts: Sequence[str]) -> Node:
    """One of some texts, with beginnings shared: alternatives that begin alike are what makes a grammar slow."""
    root: dict[str, dict] = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _trie_node(root)


def _trie_node(node: dict[str, dict]) -> Node:
    branches: list[Node] = []
    for character, rest in node.items():
        if not character:
            continue
        items: list[Node] = [chars_of(character)]
        while len(rest) == 1 and "" not in rest:  # unbranched stretches need no recursion
            character, rest = next(iter(rest.items()))
            items.append(chars_of(character))
        branches.append(Cat((*items, _trie_node(rest))) if rest.keys() != {""} else Cat(tuple(items)))
    choice = branches[0] if len(branches) == 1 else Alt(tuple(branches)) if branches else EMPTY
    return Repeat(choice, 0, 1) if "" in node and branches else choice
