"""What this plugin offers, and its options. Owns: those. Must never know: how drafts are found."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from octavo.config import Section
from octavo.errors import ConfigError
from octavo.hookspecs import hookimpl
from octavo.spec import DrafterEntry


class NgramOptions(Section, frozen=True):
    """`plugins.ngram.…`"""

    min_n: Annotated[int, Meta(ge=1, le=64, description="Fewest tokens at the end that must have occurred before.")] = 2
    max_n: Annotated[int, Meta(ge=1, le=64, description="Most tokens at the end to look for; longer wins.")] = 5

    def __post_init__(self) -> None:
        if self.min_n > self.max_n:
            raise ConfigError(
                f"min_n is {self.min_n} but max_n is {self.max_n}; raise max_n or lower min_n, so that min_n <= max_n"
            )


@hookimpl
def octavo_options() -> type[Section]:
    return NgramOptions


@hookimpl
def octavo_register_drafters() -> list[DrafterEntry]:
    return [DrafterEntry(name="ngram", factory="octavo_ngram.drafter:NgramDrafter")]
