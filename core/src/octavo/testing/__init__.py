"""What plugin authors test with: conformance suites for each kind of plugin, and the parts that they are made of.

Nothing of Octavo but `octavo plugins matrix` imports this package; a pytest plugin (`octavo.testing.pytest_plugin`)
offers its parts as fixtures.
`octavo.testing.suites` says how to use the suites; importing them from here imports torch only when one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.testing.suites import (
        AttentionBackendSuite,
        Constraint,
        DrafterSuite,
        ExecutorSuite,
        GrammarSuite,
        KVPolicySuite,
        LogitsProcessorSuite,
        ModelSuite,
        ParserSample,
        PlainCall,
        ReasoningParserSuite,
        RouteSuite,
        ToolParserSuite,
    )

__all__ = [
    "AttentionBackendSuite",
    "Constraint",
    "DrafterSuite",
    "ExecutorSuite",
    "GrammarSuite",
    "KVPolicySuite",
    "LogitsProcessorSuite",
    "ModelSuite",
    "ParserSample",
    "PlainCall",
    "ReasoningParserSuite",
    "RouteSuite",
    "ToolParserSuite",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from octavo.testing import suites

    return getattr(suites, name)
