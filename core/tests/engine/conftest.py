"""Engines over the table model, and a check that nothing of any request is left in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from octavo import LLM
from octavo.testing.table_model import logits_of, state_of, table_llm


def _greedy(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(logits_of(torch.tensor([state_of(tokens)])).argmax()))
    return tokens[len(prompt) :]


def _assert_clean(llm: LLM) -> None:
    engine = llm.engine
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert not engine.core.has_work
    assert not llm._inboxes
    runner = engine.core._executor  # type: ignore[attr-defined]
    assert not runner._batch.sequences
    assert not runner._processors._attached
    assert not runner._processors._pending
    assert sorted(runner._batch._free_rows) == list(range(len(runner._batch._free_rows)))
    assert not engine._outputs._by_sequence


@pytest.fixture(scope="session")
def greedy() -> Callable[[list[int], int], list[int]]:
    """`greedy(prompt ids, n)`: the n likeliest tokens that follow, one by one."""
    return _greedy


@pytest.fixture
def make_llm() -> Iterator[Callable[..., LLM]]:
    """`make_llm(**config)`: an LLM with the table model; whatever the test did to it, nothing may be left over."""
    made: list[LLM] = []

    def make(**keywords: Any) -> LLM:
        made.append(table_llm(**keywords))
        return made[-1]

    yield make
    for llm in made:
        _assert_clean(llm)


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm(block_size=4)


@pytest.fixture(scope="session")
def assert_clean() -> Callable[[LLM], None]:
    return _assert_clean
