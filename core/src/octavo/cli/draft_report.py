"""What became of drafts, in a line or two: an observer like anybody's.

Owns: `DraftReport`. Must never know: who drafted, how drafts are verified.
"""

from __future__ import annotations

from collections import Counter

from octavo.config import EngineConfig
from octavo.hookspecs import hookimpl
from octavo.spec import Observer
from octavo.step import StepStats


class DraftReport(Observer):
    """A plugin and the observer that it offers. Adds up what all steps verified and accepted."""

    def __init__(self) -> None:
        self._num_tokens = self._num_sampled = self._num_proposed = 0
        self._verified: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()

    @hookimpl
    def octavo_make_observers(self, config: EngineConfig) -> list[Observer]:
        return [self]

    def on_step(self, stats: StepStats) -> None:
        self._num_tokens += stats.num_generated_tokens
        self._num_sampled += stats.num_sampled_sequences
        self._num_proposed += stats.num_proposed_tokens
        self._verified.update(dict(enumerate(stats.verified_by_position)))
        self._accepted.update(dict(enumerate(stats.accepted_by_position)))

    def lines(self) -> list[str]:
        """For people; none if nobody proposed a draft."""
        if not self._num_proposed:
            return []
        verified, accepted = self._verified.total(), self._accepted.total()
        counts = f"{self._num_proposed} proposed, {verified} verified, {accepted} accepted{_share(accepted, verified)}"
        lines = [f"[drafts: {counts}; {self._num_tokens / self._num_sampled:.2f} tokens a step of a sequence]"]
        if verified:
            parts = [f"{self._accepted[i] / n:.0%}" for i, n in sorted(self._verified.items())]
            lines.append(f"[accepted by position: {' '.join(parts)}]")
        return lines


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.0%})" if whole else ""
