"""The laws of drafters, asked of prompt lookup."""

from __future__ import annotations

from octavo.testing import DrafterSuite
from octavo_ngram import plugin


class TestNgram(DrafterSuite):
    plugin = plugin
