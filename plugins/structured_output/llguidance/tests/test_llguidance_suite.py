"""The laws of grammar backends, of Octavo's own kit."""

from __future__ import annotations

from octavo.testing.suites import GrammarSuite
from octavo_llguidance import plugin


class TestLLGuidance(GrammarSuite):
    plugin = plugin
