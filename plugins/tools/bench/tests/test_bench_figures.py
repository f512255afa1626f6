"""Statistics and how numbers are written."""

from __future__ import annotations

import pytest

from octavo_bench.figures import Distribution, Spread, amount, duration, number, quantile


def test_a_spread_by_hand() -> None:
    spread = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (spread.median, spread.min, spread.max, spread.p90, spread.p99) == (2.5, 1.0, 10.0, 10.0, 10.0)
    assert spread.values == (3.0, 1.0, 2.0, 10.0)
    assert spread.show("s") == "2.500 s (1.000 to 10.00)"
    assert spread.show("s", tail=True) == "2.500 s (1.000 to 10.00; p90 10.00, p99 10.00)"
    assert spread.times(1e3).show("ms") == "2,500 ms (1,000 to 10,000)"
    assert Spread.of([7.0]).show("s", tail=True) == "7.000 s"


def test_quantiles_are_by_nearest_rank() -> None:
    values = list(range(1, 101))
    assert [quantile(values, q) for q in (0.0, 0.5, 0.9, 0.99, 1.0)] == [1, 50, 90, 99, 100]
    assert [quantile([5, 4], q) for q in (0.5, 0.51)] == [4, 5]
    assert quantile(values, 0.07) == 7, "0.07 * 100 is a little more than 7"


def test_a_distribution_by_hand() -> None:
    found = Distribution.of([4.0, 1.0, 2.0, 3.0], (50, 90, 99.9))
    assert found == Distribution(2.5, 1.0, 4.0, {50: 2.5, 90: 4.0, 99.9: 4.0})
    assert found.record() == {"mean": 2.5, "median": 2.5, "p90": 4.0, "p99.9": 4.0, "min": 1.0, "max": 4.0}
    assert Distribution.of([], (50,)) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0123456, "0.01235"), (1.0, "1.000"), (21.345, "21.34"), (999.9, "999.9"), (18_983.4, "18,983")],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_units_keep_numbers_readable() -> None:
    assert [amount(v, "B") for v in (0, 12, 6.9e12, 1.5e3)] == ["0 B", "12.00 B", "6.900 TB", "1.500 kB"]
    assert [duration(v) for v in (0.0, 2e-5, 0.0664, 21.3)] == ["0 µs", "20.00 µs", "66.40 ms", "21.30 s"]
