"""The composition matrix: every drafter, grammar, cache state, chunking, preemption and option in all pairs.

`octavo plugins matrix` runs the same combinations and prints them as a table.
"""

from __future__ import annotations

import itertools

import pytest

import octavo_llguidance.plugin
import octavo_ngram.plugin
import octavo_suffix.plugin
import octavo_xgrammar.plugin
from octavo.testing.matrix import RIGHT, WRONG, Combination, Matrix

MATRIX = Matrix(
    drafters=("ngram", "suffix"),
    grammars=("xgrammar json", "xgrammar regex", "llguidance json", "llguidance regex"),
    plugins=[octavo_ngram.plugin, octavo_suffix.plugin, octavo_xgrammar.plugin, octavo_llguidance.plugin],
)
COMBINATIONS = list(MATRIX.combinations())


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(c.values()).replace(" ", "_"))
def test_tokens_are_those_of_the_plain_path(combination: Combination) -> None:
    verdict = MATRIX.check(combination)
    assert verdict.holds, verdict


def test_no_pair_of_settings_is_left_out() -> None:
    held = {pair for combination in COMBINATIONS for pair in itertools.combinations(combination.items(), 2)}
    factors = {
        **MATRIX.factors,
        "drafter": ("none", "ngram", "suffix", RIGHT, WRONG),
        "sampling": ("greedy", "seeded"),
    }
    for (a, xs), (b, ys) in itertools.combinations(factors.items(), 2):
        for x, y in itertools.product(xs, ys):
            assert ((a, x), (b, y)) in held


def test_a_drafter_that_changed_tokens_would_be_noticed() -> None:
    matrix = Matrix(drafters=(), grammars=())
    combination = {factor: values[0] for factor, values in matrix.factors.items()}
    assert matrix.check(combination).holds
    for output in matrix._plain.values():
        output[0] = output[1]
    verdict = matrix.check(combination)
    assert not verdict.holds
    assert "instead of" in verdict.reason
