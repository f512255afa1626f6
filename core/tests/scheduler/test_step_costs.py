"""Costs of steps: interpolation against its definition, and correction by real steps."""

from __future__ import annotations

import math
import random

import pytest

from octavo.scheduler import StepCosts

SIZES, SECONDS = [1, 2, 4, 8, 16, 32, 64], [0.10, 0.15, 0.15, 0.14, 0.16, 0.23, 0.35]


def interpolated(sizes: list[int], seconds: list[float], n: int) -> float:
    """By definition, where no step is longer than one of more tokens; the seconds grow slower than the sizes."""
    table = [min(seconds[i:]) for i in range(len(seconds))]
    for i in range(len(sizes) - 1):
        if sizes[i] <= n <= sizes[i + 1]:
            part = (n - sizes[i]) / (sizes[i + 1] - sizes[i])
            return table[i] * (1 - part) + table[i + 1] * part
    slope = max((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]), seconds[-1] / (32 + sizes[-1]))
    return seconds[-1] + slope * (n - sizes[-1])


@pytest.mark.parametrize(("start", "count"), [(1, 1), (1, 200), (3, 6), (16, 1), (63, 4), (64, 3), (70, 5000)])
def test_a_curve_is_the_interpolated_table(start: int, count: int) -> None:
    expected = [interpolated(SIZES, SECONDS, n) for n in range(start, start + count)]
    assert StepCosts(SIZES, SECONDS).curve(start, count) == pytest.approx(expected)


def test_a_cost_never_falls_and_a_flat_end_promises_nothing() -> None:
    curve = StepCosts([1, 8, 16], [1.0, 3.0, 2.9]).curve(1, 200)
    assert curve == sorted(curve)
    assert curve[150] > curve[20]


@pytest.mark.parametrize("disturbed", range(7))
def test_a_disturbed_measurement_is_put_right_as_far_as_it_can_be(disturbed: int) -> None:
    true = [0.10, 0.15, 0.15, 0.15, 0.16, 0.23, 0.35]
    measured = [20 * s if i == disturbed else s for i, s in enumerate(true)]
    found, wanted = (StepCosts(SIZES, seconds).curve(1, 64) for seconds in (measured, true))
    for n, (a, b) in enumerate(zip(found, wanted, strict=True), 1):
        assert a == pytest.approx(b, rel=0.6) or n > 32, f"{n} tokens: {a} instead of {b}"
        assert a <= 2 * b


def test_few_sizes_do_not_make_a_steep_line() -> None:
    costs = StepCosts([1, 2], [0.1, 5.0])  # the second was disturbed
    assert ratio(costs, 1, 17) < 3


def test_one_size_is_a_table_too() -> None:
    assert StepCosts([1], [0.33]).curve(1, 3) == pytest.approx([0.33, 0.34, 0.35])


def ratio(costs: StepCosts, few: int, many: int) -> float:
    return costs.curve(many, 1)[0] / costs.curve(few, 1)[0]


def test_real_steps_correct_the_ratio_between_sizes() -> None:
    costs = StepCosts(SIZES, SECONDS)
    for _ in range(200):
        costs.correct(1, 0.1)
        costs.correct(17, 0.3)
    assert ratio(costs, 1, 17) == pytest.approx(3.0, rel=0.1)


def test_a_machine_that_gets_slower_changes_no_ratio_for_long() -> None:
    costs, rng = StepCosts(SIZES, SECONDS), random.Random(0)
    before = ratio(costs, 1, 17)
    for step in range(600):
        slower = 3.0 if 200 <= step < 400 else 1.0
        n = rng.choice([1, 17])
        costs.correct(n, slower * interpolated(SIZES, SECONDS, n))
        assert ratio(costs, 1, 17) == pytest.approx(before, rel=0.35)
    assert ratio(costs, 1, 17) == pytest.approx(before, rel=0.05)


def test_one_disturbed_step_counts_for_little() -> None:
    costs = StepCosts(SIZES, SECONDS)
    costs.correct(17, 0.2)
    before = ratio(costs, 1, 17)
    costs.correct(17, 60.0)
    assert ratio(costs, 1, 17) == pytest.approx(before, rel=0.04)


def test_an_assumed_table_takes_its_scale_from_the_first_step() -> None:
    costs = StepCosts.assumed()
    curve = costs.curve(1, 64)
    costs.correct(1, 0.004)
    assert costs.curve(1, 64) == pytest.approx([c * 0.004 / curve[0] for c in curve])
    assert math.isclose(costs.curve(1, 1)[0], 0.004)
