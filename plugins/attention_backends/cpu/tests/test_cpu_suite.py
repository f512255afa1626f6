"""The laws of attention backends, asked of the native one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo.spec import AttentionBackend
from octavo.testing import AttentionBackendSuite
from octavo.testing.suites.attention_backend import FEATURES
from octavo_cpu import plugin
from octavo_cpu.build import supported_isas
from octavo_cpu.library import load_kernels
from octavo_cpu.plugin import CPUOptions


class TestCPUAttention(AttentionBackendSuite):
    plugin = plugin
    isa = "auto"
    num_threads = 3

    def backend(self) -> AttentionBackend:
        backend = self.offer.make(CPUOptions(isa=self.isa))
        load_kernels(self.isa).set_num_threads(self.num_threads)
        return backend

    @pytest.mark.parametrize("isa", supported_isas()[1:])
    def test_other_instruction_sets(self, isa: str, features: str, dtype: str) -> None:
        """Two laws that reach everything, for those that this machine has but would not choose."""
        self.isa = isa
        for seed in range(2):
            self.test_prefill_and_decode_in_one_batch(features, dtype, "cpu", seed)
        self.test_sequences_that_share_their_first_blocks(features, dtype)

    def test_sequences_that_threads_share(self, features: str, dtype: str) -> None:
        """Long ones, alone and beside a short one."""
        for num_tokens in ([2600], [2600, 70]):
            case = self.case(self.layer(1, 2, 16, **FEATURES[features]), num_tokens, 16, dtype)
            for query_lens in ([2400, 3], [100, 60], [1, 1]):
                self.check(case, query_lens[: len(num_tokens)])

    @pytest.mark.parametrize(
        "extras", [{}, {"sliding_window": 4000, "soft_cap": 3.0, "alibi": True, "has_sinks": True}]
    )
    def test_what_is_shared_is_as_if_alone(self, extras: dict[str, Any], dtype: str, block_size: int) -> None:
        """Bit for bit, though queries of several sequences are multiplied with the first keys at once.

        On one thread, where groups are largest. Of two roots, one above and one below the end of a span, and of
        prefixes that branch further on; sequences with different prefixes come in turn.
        """
        self.num_threads = 1
        layer = self.layer(2, 3, 64, **extras)
        of_tokens = [0, 0, 1248, 480, 1248, 480, 1296, 96, 1248, 0, 1104, 480, 768, 480]
        case = self.case(layer, [1400 if n != 480 else 700 for n in of_tokens], block_size, dtype)
        case.step([1390, 600], [0, 1])
        for i, length in enumerate(of_tokens):
            if length:
                case.share(i, 1 if length == 480 else 0, length // block_size)
        query_lens = [1, 2, 1, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1]
        together = self.check(case, query_lens)
        case.num_computed = [n - q for n, q in zip(case.num_computed, query_lens, strict=True)]
        assert torch.equal(torch.cat([case.step([q], [i]) for i, q in enumerate(query_lens)]), together)
