"""The laws of attention backends, asked of the native one."""

from __future__ import annotations

from octavo.testing import AttentionBackendSuite
from octavo.testing.suites.attention_backend import FEATURES
from octavo_cpu import plugin


class TestCPUAttention(AttentionBackendSuite):
    plugin = plugin

    def test_sequences_that_threads_share(self, features: str, dtype: str) -> None:
        """Long ones, alone and beside a short one."""
        for num_tokens in ([2600], [2600, 70]):
            case = self.case(self.layer(1, 2, 16, **FEATURES[features]), num_tokens, 16, dtype)
            for query_lens in ([2400, 3], [100, 60], [1, 1]):
                self.check(case, query_lens[: len(num_tokens)])
