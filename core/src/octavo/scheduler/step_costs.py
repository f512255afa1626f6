"""How long a step takes, as a function of its tokens.

Owns: `StepCosts`. Must never know: clocks, sequences, what a cost is used for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_ASSUMED_FIXED_TOKENS = 32
"""Where nothing was measured, a step is taken to cost as much as so many tokens, and one more for each of its own;
beyond what was measured, each further token costs at least what it does in such a step."""
_SHARED, _OWN = 0.2, 0.06
"""What part of a step's surprise moves all sizes (the machine got slower), and its own size besides."""
_LARGEST_SURPRISE = 0.5
"""Natural logarithm of a ratio; a step that was disturbed counts for no more than this."""
_FORGETTING = 0.002
"""How fast sizes that are not seen return to the table."""


class StepCosts:
    """Seconds of a step of n tokens, each with logits: a table, interpolated, that never falls with n.

    Real steps correct it: they see longer contexts, sampling options and busier machines than the measurement did.
    Only ratios between sizes matter to who sizes drafts. So what makes all steps slower moves all sizes, and only a
    lasting difference moves one against the others.
    """

    def __init__(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """`sizes` rise from 1 on; beyond the last the cost goes on in a straight line."""
        table = _undisturbed(sizes, seconds)
        slope = table[-1] / (_ASSUMED_FIXED_TOKENS + sizes[-1])  # a flat end does not promise that it goes on
        if sizes[-1] >= _ASSUMED_FIXED_TOKENS:  # nor does the stair between one token and two
            slope = max(slope, (table[-1] - table[-2]) / (sizes[-1] - sizes[-2]))
        far = 16 * sizes[-1]
        self._sizes = [*sizes, far]
        self._table = [*table, table[-1] + slope * (far - sizes[-1])]
        self._seconds = list(self._table)
        self._corrections = [0.0] * len(self._sizes)
        """Natural logarithm of the ratio between real and measured seconds, by size."""
        self._corrected = False

    @classmethod
    def assumed(cls) -> StepCosts:
        """For an engine that measures nothing: right in shape, and corrected by real steps."""
        sizes = [2**i for i in range(12)]
        return cls(sizes, [float(_ASSUMED_FIXED_TOKENS + n) for n in sizes])

    def curve(self, start: int, count: int) -> list[float]:
        """Seconds of steps of `start`, `start + 1`, … tokens; `count` numbers."""
        sizes, seconds = self._sizes, self._seconds
        found: list[float] = []
        end = start + count
        while start < end:
            left = self._left(start)
            stop = max(start + 1, min(end, sizes[left + 1])) if left + 2 < len(sizes) else end
            slope = (seconds[left + 1] - seconds[left]) / (sizes[left + 1] - sizes[left])
            first = seconds[left] + slope * (start - sizes[left])
            found += [first + slope * i for i in range(stop - start)]
            start = stop
        return found

    def correct(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` tokens, all with logits, took so long."""
        surprise = math.log(seconds / self.curve(num_tokens, 1)[0])
        corrections = self._corrections
        if not self._corrected:
            self._corrected = True
            corrections[:] = [surprise] * len(corrections)
        else:
            surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
            mean = sum(corrections) / len(corrections)
            corrections[:] = [c + _SHARED * surprise - _FORGETTING * (c - mean) for c in corrections]
            left = self._left(num_tokens)  # each neighbour moves by what it has to say in the interpolation
            part = min((num_tokens - self._sizes[left]) / (self._sizes[left + 1] - self._sizes[left]), 1.0)
            corrections[left] += _OWN * surprise * (1 - part)
            corrections[left + 1] += _OWN * surprise * part
        self._seconds = list(accumulate((t * math.exp(c) for t, c in zip(self._table, corrections, strict=True)), max))

    def _left(self, num_tokens: int) -> int:
        """Index of the size from which on the line that holds `num_tokens` goes."""
        return min(max(bisect_right(self._sizes, num_tokens) - 1, 0), len(self._sizes) - 2)


def _undisturbed(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """The seconds without what cannot be: disturbances only make a measured step longer.

    A step takes no longer than one of more tokens took, and one of n tokens no longer than n / m of m tokens.
    """
    table = list(accumulate(reversed(seconds), min))[::-1]
    for i in range(1, len(table)):
        table[i] = min(table[i], table[i - 1] * sizes[i] / sizes[i - 1])
    return table
