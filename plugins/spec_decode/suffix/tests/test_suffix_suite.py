"""The laws of drafters, asked of suffix decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from octavo.testing import DrafterSuite
from octavo_suffix import plugin


class TestSuffix(DrafterSuite):
    plugin = plugin
    options: ClassVar[Mapping[str, Any]] = {"max_cached_tokens": 2000}
    shares_across_requests = True
