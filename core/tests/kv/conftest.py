from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from octavo.kv import KVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams


@pytest.fixture(scope="session")
def window_policy() -> ModuleType:
    """The toy sliding-window spec and policy."""
    path = Path(__file__).with_name("window_policy.py")
    spec = importlib.util.spec_from_file_location("toy_window_policy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # slotted dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make_sequence() -> Callable[..., SimpleNamespace]:
    """`make_sequence(manager, token_ids, **request fields)`: what the manager looks at, and no more."""

    def make(manager: KVCacheManager, token_ids: list[int], **fields: object) -> SimpleNamespace:
        request = Request(
            request_id="r",
            prompt_token_ids=tuple(token_ids),
            sampling_params=SamplingParams(),
            seed=0,
            eos_token_ids=frozenset(),
            max_tokens=16,
            arrival_time=0.0,
            **fields,  # type: ignore[arg-type]
        )
        return SimpleNamespace(request=request, token_ids=list(token_ids), blocks=manager.new_blocks())

    return make
