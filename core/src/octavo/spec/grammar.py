"""Contract of grammar backends: what compiles a constraint, and what follows a sequence through it.

A backend does not see logits or batches: `octavo.grammar.GrammarProcessor` makes a logits processor out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np


class GrammarMatcher(Protocol):
    """Where one sequence stands in its grammar."""

    failure: str | None
    """Why it cannot go on (a limit that it met on the way), for the user; None while all is well."""

    def accept(self, token_id: int) -> bool:
        """Move on by one token. False, and nothing has changed, if the grammar forbids it here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens: masks and answers are then exactly what they were before them."""
        ...

    def is_finished(self) -> bool:
        """Whether the output is whole and nothing but its end can follow."""
        ...

    def forced_text(self) -> str:
        """What the text must go on with, whichever tokens spell it; empty if there is a choice. Changes nothing."""
        ...


class CompiledGrammar(Protocol):
    """A constraint ready for use; shared by all sequences that have it."""

    num_bytes: int
    """Memory that it takes, for the cache of compiled grammars."""

    def matcher(self, stop_token_ids: frozenset[int]) -> GrammarMatcher:
        """A matcher at the start. `stop_token_ids` are allowed exactly where the output may end; may be empty."""
        ...


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Rows of the bitmask that one sequence needs: one after its committed tokens, and one after each draft."""

    matcher: GrammarMatcher
    first_row: int
    draft_token_ids: Sequence[int]


class GrammarBackend(Protocol):
    """Compiles constraints and fills bitmasks. Built by a plugin, which hands it to `GrammarProcessor`."""

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Compile a constraint; called in a background thread, perhaps in several at once.

        It must take no more than `StructuredOutputsConfig.compile_timeout` seconds of CPU, six times that waiting
        included, and stay within `max_compile_bytes`; `octavo.trial` helps with both.
        Raises `InvalidRequestError` (field `structured_outputs`) for what it cannot compile, or would compile to
        something that does not enforce all of the constraint; the message names the keyword or the limit.
        """
        ...

    def fill_bitmask(self, work: Sequence[MaskRows], bitmask: np.ndarray) -> None:
        """Write all rows of a step. `bitmask` [num_rows, ceil(vocab_size / 32)] int32 comes with all bits set.

        Bit t % 32 of word t // 32 says whether token t may follow; ids that are no tokens are forbidden. Rows behind
        a draft that the grammar forbids are never reached and may be left. Matchers are afterwards as before, but for
        their `failure`.
        """
        ...

    def shutdown(self) -> None:
        """End compilations that run, and whatever processes there are. Called once, at the end."""
        ...
