"""What this plugin offers, and its options. Owns: both. Must never know: indexes, drafts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from octavo.config import Section
from octavo.hookspecs import hookimpl
from octavo.spec import DrafterEntry


class SuffixOptions(Section, frozen=True):
    """How drafts are found and how long they get. The defaults come from replayed outputs (README)."""

    match_lens: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=256)], ...],
        Meta(min_length=1, description="Numbers of last tokens that are looked up, each on its own."),
    ] = (3, 6, 12)
    max_occurrences: Annotated[
        int, Meta(ge=1, description="Latest occurrences of each match that vote on what follows.")
    ] = 16
    factor: Annotated[
        float, Meta(ge=0, description="A match of n tokens gives at most factor * n + offset drafts.")
    ] = 4.0
    offset: Annotated[float, Meta(description="See factor.")] = 0.0
    min_probability: Annotated[
        float, Meta(ge=0, le=1, description="Drafting stops where the estimated acceptance falls below this.")
    ] = 0.5
    max_cached_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=10**9,
            description="Tokens of earlier outputs kept, all salts together; 0: none are.",
        ),
    ] = 524_288


@hookimpl
def octavo_options() -> type[Section]:
    return SuffixOptions


@hookimpl
def octavo_register_drafters() -> list[DrafterEntry]:
    return [DrafterEntry(name="suffix", factory="octavo_suffix.drafter:SuffixDrafter")]
