"""What core brings along obeys the laws that it makes for plugins."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.spec import FullAttentionSpec, KVCacheSpec
from octavo.testing import ExecutorSuite, KVPolicySuite, LogitsProcessorSuite


class TestPenalties(LogitsProcessorSuite):
    name = "penalties"
    requests = ({"presence_penalty": 1.0}, {"frequency_penalty": 0.7, "repetition_penalty": 1.3})


class TestBadWords(LogitsProcessorSuite):
    name = "bad_words"
    requests = ({"bad_words": ["ab", "c", "012"]},)


class TestFullAttention(KVPolicySuite):
    specs = tuple(FullAttentionSpec(block_size=size, num_kv_heads=1, head_dim=1, dtype="float32") for size in (1, 4))

    def reads(self, spec: KVCacheSpec, position: int) -> Iterable[int]:
        return range(position + 1)


class TestInProcess(ExecutorSuite):
    name = "inproc"
