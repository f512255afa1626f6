"""Random regular expressions against `re`, word by word: what xgrammar compiles is what was asked for."""

from __future__ import annotations

import itertools
import random
import re

import pytest

ALPHABET = "abc"
WORDS = ["".join(word) for length in range(6) for word in itertools.product(ALPHABET, repeat=length)]
REPEATS = ("?", "*", "+", "{1,2}", "{0,2}", "{2,}", "{2}", "{1,3}")
KNOWN = (
    "a|aa?",
    "(?:a|a(?:|a))",
    "ab(?:x[0-9]+)?c",
    "a(?:b+)?c",
    "(?:[ab]|(?:[ab]){0,2})",
    "(?:c|c[ab]c|(?:c{1,2}){1,2})",
)
"""What xgrammar's own reading of expressions gets wrong."""


def draw(rng: random.Random, depth: int) -> str:
    choice = rng.random()
    if depth == 0 or choice < 0.35:
        return rng.choice([*ALPHABET, "[ab]"])
    if choice < 0.6:
        return "".join(draw(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    if choice < 0.8:
        return f"(?:{draw(rng, depth - 1)}|{draw(rng, depth - 1)})"
    return f"(?:{draw(rng, depth - 1)}){rng.choice(REPEATS)}"


def wrong_words(grammars, expression: str, words: list[str], in_json: bool) -> list[str]:
    constraint = {"json": {"type": "string", "pattern": f"^(?:{expression})$"}} if in_json else {"regex": expression}
    compiled = grammars.compile(**constraint)
    texts = {word: f'"{word}"' if in_json else word for word in words}
    return [w for w, text in texts.items() if grammars.accepts(compiled, text) != bool(re.fullmatch(expression, w))]


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize("expression", KNOWN)
def test_known_traps(grammars, expression, in_json):
    words = [*WORDS, "abx1c", "abx12c", "ab1c", "abc", "abxc"]
    assert wrong_words(grammars, expression, words, in_json) == []


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions(grammars, seed):
    rng = random.Random(seed)
    for _ in range(60):
        expression = draw(rng, 3)
        assert wrong_words(grammars, expression, rng.sample(WORDS, 40), in_json=seed % 2 == 0) == [], expression
