"""What this plugin offers, and its options. Owns: those. Must never know: xgrammar, torch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from octavo.config import Section
from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry


class XGrammarOptions(Section, frozen=True):
    """`plugins.xgrammar.…`"""

    max_whitespace: Annotated[
        int,
        Meta(ge=1, le=256, description="Longest run of whitespace between JSON tokens, where whitespace is allowed."),
    ] = 32
    closed_objects: Annotated[
        bool,
        Meta(description="Objects hold only properties that the schema names, unless it has additionalProperties."),
    ] = True
    num_workers: Annotated[
        int, Meta(ge=0, description="Most processes that compile at the same time; 0: the number of CPUs.")
    ] = 0
    cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory of each compiler for parts that several grammars have in common.")
    ] = 2**25


@hookimpl
def octavo_options() -> type[Section]:
    return XGrammarOptions


@hookimpl
def octavo_register_logits_processors() -> list[LogitsProcessorEntry]:
    return [
        LogitsProcessorEntry(
            name="xgrammar",
            factory="octavo_xgrammar.backend:make",
            order=100,
            refines_drafts=True,
            grammar_kinds=frozenset({"json", "json_object", "regex", "choice", "grammar", "structural_tag"}),
            priority=10,
        )
    ]
