"""The laws of attention backends, asked of the native one."""

from __future__ import annotations

from octavo.testing import AttentionBackendSuite
from octavo_cpu import plugin


class TestCPUAttention(AttentionBackendSuite):
    plugin = plugin
