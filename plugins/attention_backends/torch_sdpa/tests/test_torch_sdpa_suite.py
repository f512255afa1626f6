"""The laws of attention backends, asked of the reference."""

from __future__ import annotations

from octavo.testing import AttentionBackendSuite
from octavo_torch_sdpa import plugin


class TestTorchSDPA(AttentionBackendSuite):
    plugin = plugin
