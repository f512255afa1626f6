"""What this plugin offers. Owns: that. Must never know: how grammars are compiled or followed."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import LogitsProcessorEntry


@hookimpl
def octavo_register_logits_processors() -> list[LogitsProcessorEntry]:
    return [
        LogitsProcessorEntry(
            name="llguidance",
            factory="octavo_llguidance.backend:make",
            order=100,
            refines_drafts=True,
            grammar_kinds=frozenset({"json", "json_object", "regex", "choice", "grammar"}),
            priority=5,
        )
    ]
