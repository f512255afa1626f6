"""The laws of grammar backends, asked of xgrammar."""

from __future__ import annotations

from octavo.testing import GrammarSuite
from octavo_xgrammar import plugin


class TestXGrammar(GrammarSuite):
    plugin = plugin
