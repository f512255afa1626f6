"""Expressions mean what they mean to Python's `re`, in plain text and inside of JSON strings."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from octavo.errors import InvalidRequestError
from octavo_xgrammar import regexes, spelling
from octavo_xgrammar.regexes import Refused

ALPHABET = 'ab"\\\n'
TEXTS = ["".join(t) for n in range(4) for t in itertools.product(ALPHABET, repeat=n)]


def random_expression(rng: random.Random, depth: int = 0) -> str:
    kind = rng.randrange(9 if depth < 3 else 4)
    if kind < 2:
        return rng.choice(["a", "b", '"', r"\\", r"\n"])
    if kind == 2:
        return rng.choice(
            [".", r"\w", r"\W", r"\s", r"\S", "[ab]", "[^a]", r'["\\]', r"[^\\]", r"[\s\S]", "[a-b]", "[^ab]"]
        )
    if kind == 3:
        return ""
    inner = [random_expression(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if kind < 6:
        return "".join(inner)
    if kind == 6:
        return f"({'|'.join(inner)})"
    bounds = rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "*?", "{,2}"])
    return f"(?:{inner[0]}){bounds}"


@pytest.mark.parametrize("seed", range(60))
def test_whole_text_as_python_has_it(grammars, seed):
    expression = random_expression(random.Random(seed)) or "a"
    pattern = re.compile(expression, re.ASCII)
    wanted = {text for text in TEXTS if pattern.fullmatch(text)}
    if wanted <= {""}:
        return
    grammar = grammars.compile(regex=expression)
    assert {text for text in TEXTS if grammars.accepts(grammar, text)} == wanted, expression


@pytest.mark.parametrize("seed", range(60))
def test_pattern_of_a_json_string_as_python_has_it(grammars, seed):
    rng = random.Random(1000 + seed)
    expression = rng.choice(["", "^"]) + random_expression(rng) + rng.choice(["", "$"])
    # JSON Schema's $ is the end of the text, Python's also stands before a last line break
    pattern = re.compile(expression.replace("$", r"\Z"), re.ASCII)
    grammar = grammars.compile(json={"type": "string", "pattern": expression})
    wanted = {text for text in TEXTS if pattern.search(text)}
    assert {text for text in TEXTS if grammars.accepts(grammar, json.dumps(text))} == wanted, expression
    assert not any(grammars.accepts(grammar, f'"{text}"') for text in ('"', "\\", "\n", "\t", '\\"" '))


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        ("^(|.*)$", ["", "ab"], ["a\nb"]),
        ("^a$|^b$", ["a", "b"], ["ab", "c"]),
        (r"\Aa\Z", ["a"], ["aa"]),
        ("(?P<x>a)(?<y>b)", ["ab"], ["a"]),
        ("[]", [], []),
        ("[a-]+", ["a-"], ["b"]),
        (r"[\d-x]+", ["1-x"], ["a"]),
        (r"\d", ["7"], ["٣"]),
        (r"\ud83d\ude00|\u{1F601}|\x41|\cA", ["😀", "😁", "A", "\x01"], ["a"]),
        ("[一-龥é]+", ["中é"], ["a"]),
        ("[^a]", ["é", "😀", "\n", '"'], ["a", ""]),
        ("{|}|]", ["{", "}", "]"], ["a"]),
        ("a{0}b", ["b"], ["ab"]),
        (r"[a-z]{2,300}\.", ["ab.", "a" * 300 + "."], ["a.", "a" * 301 + ".", "ab"]),
        ("[a-z]{2,300}", ["ab", "a" * 300], ["a", "a" * 301]),
        (r"\.\*\/\-\(", [".*/-("], ["a"]),
    ],
)
def test_what_an_expression_matches(grammars, expression, matching, others):
    if not matching:
        with pytest.raises(InvalidRequestError, match="no character"):
            grammars.compile(regex=expression)
        return
    grammar = grammars.compile(regex=expression)
    assert [t for t in matching if not grammars.accepts(grammar, t)] == []
    assert [t for t in others if grammars.accepts(grammar, t)] == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[a", r"a set \[ is not closed"),
        ("(a", "a group is not closed"),
        ("a)", r"unmatched \)"),
        ("*a", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{3,1}", "from more to fewer"),
        ("(?=a)b", "lookahead"),
        ("(?<!a)b", "lookbehind"),
        (r"(a)\1", "back-reference"),
        (r"(?P<n>a)(?P=n)", "flags and conditions"),
        (r"\bа", "word boundary"),
        (r"\p{L}", "Unicode property"),
        (r"\q", "unknown escape"),
        ("(?i)a", "flags"),
        ("a^b", "anchor"),
        ("(a$)*", "anchor"),
        ("a\\", "backslash"),
        (r"\xg", "hexadecimal"),
        (r"\ud800", "surrogate"),
        ("(ab){1000}", "more than 128 times"),
        ("(" * 500 + "a" + ")" * 500, "deep"),
    ],
)
def test_what_is_refused(expression, message):
    with pytest.raises(Refused, match=message):
        spelling.ebnf(regexes.whole(regexes.parse(expression)), in_json=False, exact_repeats=16)


def test_nul_is_a_character_like_others(grammars):
    for expression in ("a\x00b", r"a\x00b", r"a\0b"):
        grammar = grammars.compile(regex=expression)
        assert grammars.accepts(grammar, "a\x00b")
        assert not grammars.accepts(grammar, "a")


def test_length_of_matches():
    for expression, lens in {"a|bcd": (1, 3), "a{2,3}b?": (2, 4), "a*": (0, None), "(ab|c){2}": (2, 4)}.items():
        assert regexes.text_len(regexes.parse(expression)) == lens


@pytest.mark.parametrize("seed", range(20))
def test_trie_is_exactly_its_texts(grammars, seed):
    rng = random.Random(seed)
    chosen = rng.sample([t for t in TEXTS if t], rng.randint(1, 12))
    grammar = grammars.compile(choice=chosen)
    assert {text for text in TEXTS if grammars.accepts(grammar, text)} == set(chosen)
