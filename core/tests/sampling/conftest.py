"""Statistics for the sampling tests: a goodness-of-fit test with bounds that hold for sound samplers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest


def _fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's chi-square at five standard deviations (Wilson and Hilferty 1931); rare cells are merged."""
    rare = expected < 5
    if (counts[expected == 0] > 0).any():
        return False
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    counts, expected = counts[keep], expected[keep]
    freedom = max(1, len(counts) - 1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return z < 5


@pytest.fixture
def fits() -> Callable[[np.ndarray, np.ndarray], bool]:
    """`fits(counts, expected counts)`: whether the counts can come from the expected distribution."""
    return _fits
