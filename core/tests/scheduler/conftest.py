from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from octavo.config import SchedulerConfig
from octavo.kv import FullAttentionPolicy, KVCacheGroup, KVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler import FCFSQueue, PriorityQueue, Scheduler
from octavo.spec.kv import FullAttentionSpec

TESTS = Path(__file__).parents[1]


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # slotted dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def window_policy() -> ModuleType:
    """The toy sliding-window spec and policy."""
    return load(TESTS / "kv" / "window_policy.py", "toy_window_policy_of_scheduler_tests")


@pytest.fixture(scope="session")
def fake_runner() -> ModuleType:
    """The scripted runner that simulates physical slots."""
    return load(TESTS / "scheduler" / "fake_runner.py", "fake_runner_of_scheduler_tests")


@pytest.fixture(scope="session")
def make_request() -> Callable[..., Request]:
    """`make_request(prompt, max_tokens=…, eos=…, arrival=…, adapter=…, salt=…, **sampling_params)`."""

    def make(
        prompt: list[int],
        *,
        max_tokens: int = 16,
        eos: tuple[int, ...] = (),
        arrival: float = 0.0,
        adapter: str | None = None,
        salt: str | None = None,
        **params: object,
    ) -> Request:
        return Request(
            request_id="r",
            prompt_token_ids=tuple(prompt),
            sampling_params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
            seed=0,
            eos_token_ids=frozenset(eos),
            max_tokens=max_tokens,
            arrival_time=arrival,
            adapter=adapter,
            cache_salt=salt,
        )

    return make


@pytest.fixture(scope="session")
def make_scheduler() -> Callable[..., Scheduler]:
    """A scheduler over one full-attention group of `num_blocks` usable blocks of `block_size` tokens."""

    def make(
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        budget: int = 64,
        max_num_seqs: int = 8,
        threshold: int = 0,
        policy: str = "fcfs",
        max_model_len: int = 1000,
        lookahead: int = 0,
        prefix_caching: bool = True,
    ) -> Scheduler:
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_dim=1, dtype="int8")
        group = KVCacheGroup(("0",), spec, FullAttentionPolicy(spec), num_blocks + 1)
        config = SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, long_prefill_token_threshold=threshold
        )
        queue = PriorityQueue() if policy == "priority" else FCFSQueue()
        return Scheduler(config, KVCacheManager([group], block_size, prefix_caching), queue, max_model_len, lookahead)

    return make
