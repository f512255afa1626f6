"""The laws of attention backends, asked of the native one."""

from __future__ import annotations

import torch

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

    def test_sequences_go_over_what_they_share_as_if_alone(self, dtype: str) -> None:
        """Bit for bit, though queries of several sequences are multiplied with the first keys at once."""
        num_tokens, num_shared = [1400, 1400, 1400, 500, 1300, 300, 1400], [0, 80, 81, 17, 0, 16, 80]
        case = self.case(self.layer(2, 3, 64), num_tokens, 16, dtype)
        case.step([1390, 1290], [0, 4])
        for i, num_blocks in enumerate(num_shared):
            if num_blocks:
                case.share(i, 4 if i == 3 else 0, num_blocks)
        query_lens = [1, 2, 1, 1, 1, 3, 1]
        together = self.check(case, query_lens)
        case.num_computed = [n - q for n, q in zip(case.num_computed, query_lens, strict=True)]
        assert torch.equal(torch.cat([case.step([q], [i]) for i, q in enumerate(query_lens)]), together)
